"""How long P keeps blocks for a request. The port, its two stores, and the pure state of both sides.

``store``         the port: grant, renew, release, reap; ``ids`` and durations that it takes
``model``         what a store does, as a table without I/O; ``memory_store`` is that table
``redis_store``   the same in Redis, by the scripts beside it; ``redis_wakeups`` hears of releases, ``redis_errors``
                  translates what goes wrong
``holder``        P's view of its leases; ``holder_state`` are the states of one
``renewal``       the router's view: what it renews, and when
"""
