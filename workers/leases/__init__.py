"""P's leases: granted and ended by the main process, and stored by two threads of it. Begin with ``keeper``.

``keeper``         grants and ends leases; its thread talks to the lease store
``listener``       a thread that waits for releases
``engine_leases``  what the HTTP server calls: ends a lease in the keeper and frees its blocks in the engine
"""
