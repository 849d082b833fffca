"""The routers: ``baton``, ``nginx`` and the ``wheels`` of others, each a ``router`` that can be started; ``install``
fetches those that are not there.
"""
