"""A port that is served: connections within bounds, and the bodies of requests.

``port``         uvicorn as both sides run it; ``config`` is what it is made with
``acceptor``     accepts connections, or turns them away
``connection``   one client's connection; ``connections`` are all of one port
``deadlines``    what is due a fixed time after it began; ``unread`` are answers that their clients do not take
``body``         request bodies, bounded in bytes and in time
``notices``      what strangers do, counted, in one line a minute
"""
