"""HTTP for routers and workers alike.

``served``   a port: its connections and their bounds, request bodies
``access``   whom a port answers: names of hosts, pages of other sites
``tls``      of ports and of connections between our processes
``sockets``  that ports are served on
"""
