"""Block reads beside plain copies: two processes with a NIXL agent each, through the product's own block transfer.

``__main__`` is the command line. For each transport and piece size it starts a ``reader``, which starts the ``source``
that it reads from (both are a ``rank``, over ``memory``). ``findings`` are what a reader measures, ``pages`` makes the
report of them.
"""
