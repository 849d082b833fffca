"""Simulated engines.

``prefill``  a P, and ``decode`` a D; ``machine`` and ``cache`` are what they share
"""
