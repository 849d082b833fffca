"""The worker's HTTP server: the OpenAI endpoints on the public port, and the internal port. Main process.

Begin with ``answers/serving``, which answers one request.

``calls``     requests with a body, from the port to their ``answers``, without ASGI; ``client`` is who has asked
``pages``     all other pages
``access``    checks the internal token
``identity``  what answers say about this worker
``metrics``   the worker's metrics
"""
