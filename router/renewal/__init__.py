"""Renews the leases on P's blocks for this router's waiting requests, in a thread of its own.

Leases on the blocks of vLLM servers without Baton's connector are renewed in ``router.vllm.leases``.

``lease_client``  the thread: it renews and releases; ``core.leases.renewal`` decides when, without I/O
``port``          the interface for the rest of the router
"""
