"""HTTP for routers and workers alike.

``served``   a port: its connections and their bounds, request bodies
``client``   an HTTP/1.1 client
``access``   whom a port answers: names of hosts, pages of other sites
``answers``  what every port writes in the same way: events, ``Retry-After``, a whole answer
``error_pages``  errors of FastAPI applications
``tls``      of ports and of connections between our processes
``sockets``  that ports are served on
"""
