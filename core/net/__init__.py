"""HTTP as routers and workers both speak it.

``served``   serves a port: its connections and their bounds, request bodies
``client``   an HTTP/1.1 client
``access``   which requests a port refuses: names of hosts, pages of other sites, keys
``answers``  what every port writes in the same way: events, ``Retry-After``, a whole answer
``error_pages``  errors of FastAPI applications
``tls``      certificates of ports, and of connections between routers and workers
``sockets``  sockets that ports are served on, and TCP options
"""
