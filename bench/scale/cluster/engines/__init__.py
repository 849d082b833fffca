"""Simulated engines.

``prefill``  a P, and ``decode`` a D; ``machine`` is what they share
"""
