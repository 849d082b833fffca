"""The other routers: which there are, which of them are alive, and the clean-up after one that died.

``port``              the interface for the rest of the router
``membership``        announces this router; starts and stops all of this in order
``links``             a ``link`` to each other router, whose end is noticed at once
``failure_detector``  which routers are alive, as a table of states and events
``calls``             calls to the other routers
``listener``          the port on which they call this one; ``router.internal`` answers
``cleanup``           notifies workers which router died, so that they end its requests
"""
