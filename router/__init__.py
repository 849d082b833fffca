"""The router: OpenAI's API in front, prefill and decode workers behind, leases renewed in between. Never torch.

``main``       runs one router process; ``server`` is its uvicorn, ``tls`` its two kinds of TLS
``app``        the HTTP application, made of its parts; ``front`` is the hot path in front of it, as raw ASGI
``build``      makes what requests share, which ``services`` hands to each; ``settings`` says how
``steps``      what happens to a request, in order: let in, prefilled, held, decoded, relayed, ended; and tried again
``request``    the record of one request: its states, what was tried, and what follows a failure
``queue``      the requests that wait for room, which of them is next, and the retry budget
``placement``  picks a worker, one policy a file
``pool``       the workers known, their room and health
``upstream``   HTTP to workers
``renewal``    keeps leases on P's blocks alive
``peers``      the other routers, and the clean-up after a dead one; ``internal`` is what they ask of this one
``edge``       names, sites, keys and errors of any HTTP request
``admin``      list, abort, drain; ``dashboard``, ``metrics``, ``tracing`` and ``pages`` are the rest of what is shown
"""
