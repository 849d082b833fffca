"""vLLM's servers, as they are: its leases are renewed over NIXL, and it names a stream's tokens inside the events.

``engine``     the implementation of ``engines.port``
``answer``     P's answer; ``bodies`` what P and D are sent
``tokens``     the ids of the tokens that a client has been sent, read from the events
``continuing`` which streams another server can continue exactly
"""
