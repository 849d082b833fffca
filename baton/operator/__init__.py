"""The commands with which an operator asks a router, and ``baton scale``, which asks a ``baton up``."""
