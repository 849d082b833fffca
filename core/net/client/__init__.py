"""An HTTP/1.1 client on asyncio protocols. Begin with ``http_client``."""
