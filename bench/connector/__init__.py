"""Baton's connector beside vLLM's own, in vLLM servers: ``python -m bench.connector``.

``pair``         one P and one D, asked without a router
``stale_reads``  D stands still until other prompts have P's blocks, and then reads
"""
