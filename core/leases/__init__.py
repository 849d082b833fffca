"""How long P keeps the blocks of a request: the lease store, and the lease state of both sides without I/O.

P's main process (``workers.leases``) and the router's renewal thread (``router.renewal``) use it. Begin with ``store``.
"""
