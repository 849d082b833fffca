"""An HTTP/1.1 client on asyncio protocols.

``http_client``  requests on kept connections, one pool for each origin: what the router calls workers and routers with
``connection``   one connection, which carries one request at a time
``chunks``       reads ordinary chunks of a stream without the parser
``answer``       one answer as it comes in
``errors``       how a call fails
"""
