"""The routers: ``baton``, ``nginx`` and the ``wheels`` of others, each a ``router`` that can be started. Those of
others are fetched when they are not there.
"""
