"""The router: OpenAI's API for clients, over prefill and decode workers and leases between them. Never imports torch.

``main``       runs one router process
``apps``       the HTTP applications of its two ports; ``front`` takes requests in, for workers without ASGI
``build``      makes the parts that all requests share, from ``settings``; ``parts`` has their five groups
``steps``      the steps of a request: admitted, prefilled, held, decoded, relayed, ended; and retries
``request``    the record of one request: its states, what was tried, and what follows a failure (``failure_table``)
``dialects``   OpenAI's Responses and Anthropic's Messages as chats, and the answers back
``engines``    what differs between the engines behind workers; ``vllm`` has all that is about vLLM's servers
``queue``      the requests that wait for room, their order, and the retry budget
``placement``  which worker is picked: one policy per file, listed in ``policies``
``pool``       the known workers, their room and their health
``upstream``   HTTP to workers
``renewal``    renews the leases on P's blocks
``peers``      the other routers, and the clean-up after a dead one
``edge``       checks host names, sites and keys of any HTTP request; error answers; TLS
``admin``      list, abort, drain; ``dashboard`` shows the same; ``telemetry`` has metrics and traces
"""
