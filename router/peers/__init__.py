"""The other routers: who they are, what they answer, and what is cleaned up when one of them has died.

``port``              what the rest of the router sees of them
``membership``        begins and ends all of this in order; ``presence`` announces this router
``links``             a ``link`` to each of them, on which it would notice an end at once
``failure_detector``  who of them lives, as a table
``calls``             questions to all of them
``listener``          the port on which they ask this one; ``router.internal`` answers
``cleanup``           tells workers who died, so that what a dead router left there ends
"""
