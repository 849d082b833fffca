"""Where requests of the public port come in.

``worker_calls``  requests for workers, from their heads to their ends, without ASGI: the hot path (docs/hot-path.md)
``front``         all other requests: checked, and passed on to the framework
``server``        the port itself, and how it stops
``head``          what is read from a head
"""

from baton_serve.router.front.front import Front

__all__ = ["Front"]
