"""The routers: ``baton``, ``nginx``, the ``wheels`` of others and the ``bare`` legs, each a ``router`` that can be
started; ``install`` fetches those that are not there.
"""
