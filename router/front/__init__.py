"""Where requests of the public port come in.

``hot``     the hot path: requests for workers, which the port hands over without ASGI; docs/hot-path.md says what it
            leaves out
``front``   all other requests: checked, and passed on to the framework
``server``  the port itself, and how it stops
``head``    what is read from a head
"""

from baton_serve.router.front.front import Front

__all__ = ["Front"]
