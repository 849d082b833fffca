"""P's leases. The main process grants and ends them; two of its threads use the lease store. Begin with ``keeper``.

``keeper``         grants and ends leases; its thread talks to the lease store
``listener``       a thread that waits for releases
``engine_leases``  what the HTTP server calls: ends a lease in the keeper and frees its blocks in the engine
"""
