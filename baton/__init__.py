"""The command line: starts routers and workers as processes, and everything together with ``baton up``."""
