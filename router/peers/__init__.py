"""The other routers: which there are, which of them live, and the clean-up after one that died.

``port``              what the rest of the router sees of them
``membership``        begins and ends all of this in order; ``presence`` announces this router
``links``             a ``link`` to each of them, whose end is noticed at once
``failure_detector``  which of them live, as a table
``calls``             questions to all of them
``listener``          the port on which they ask this one; ``router.internal`` answers
``cleanup``           tells workers which router died, so that they end what it left there
"""
