"""Placement policies on real routers and real workers, one row for each pair of policies.

There are two P and two D with the demo model. Conversations begin with one of a few system prompts and come in bursts;
each turn waits for the one before. Policies take turns, with the same conversations in each repetition. Workers are
never started again: the prompts of each run begin with words of their own, so that no run finds what another one has
left in the caches.
"""
