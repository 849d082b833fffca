"""How long P keeps the blocks of a request: the lease store, and the lease state of both sides without I/O.

P's main process (``workers.leases``) and the router's renewal thread (``router.renewal``) use it. Begin with ``store``.

``store``         the port: grant, renew, release, reap; ``ids`` checks ids and durations
``model``         what a store does, as a table without I/O; ``memory_store`` wraps that table
``in_redis``      the port in Redis
``holder``        the leases that one P has granted; ``holder_state`` is the state machine of one of them
``renewal``       the leases that one router keeps alive: what it renews, and when
"""
