"""The routers: ``baton``, ``nginx``, the ``wheels`` of others and the ``bare`` legs, each a ``router`` that can be
started. Those of others are fetched when they are not there.
"""
