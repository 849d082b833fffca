"""The router: OpenAI's API for clients, prefill and decode workers behind it, leases between these. Never torch.

``main``       runs one router process; ``server`` is its uvicorn, ``tls`` its two kinds of TLS
``app``        the HTTP application, made of its parts; ``front`` is the hot path in front of it, as raw ASGI
``build``      makes what all requests share, from ``settings``; ``services`` is all of that
``steps``      what happens to a request, in order: let in, prefilled, held, decoded, relayed, ended; and tried again
``request``    the record of one request: its states, what was tried, and what follows a failure (``failure_table``)
``queue``      the requests that wait for room, which of them is next, and the retry budget
``placement``  which worker is picked: one policy a file, named in ``policies``
``pool``       the known workers, their room and their health
``upstream``   HTTP to workers
``renewal``    renews the leases on P's blocks
``peers``      the other routers, and the clean-up after a dead one; ``internal`` is what this one answers them
``edge``       names, sites, keys and errors of any HTTP request
``admin``      list, abort, drain; ``dashboard``, ``metrics``, ``tracing`` and ``pages`` show the rest
"""
