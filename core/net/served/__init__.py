"""Serves a port: connections within bounds, and the bodies of requests.

``port``         uvicorn as routers and workers run it; ``config`` has its bounds
``acceptor``     accepts connections, or turns them away
``connection``   one connection; ``connections`` has all those of a port
``heads``        what a port demands of the lines of a head; ``old_clients`` answers those of HTTP/1.0
``unread``       closes connections whose client reads nothing
``body``         request bodies, bounded in bytes and in time
``notices``      counts what connections were refused or closed for, in one log line a minute
"""
