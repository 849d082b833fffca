"""vLLM's servers in the steps of a request.

They name a stream's tokens inside the events. Their leases are renewed over NIXL, or in the store where P has loaded
Baton's connector.

``engine``     the implementation of ``engines.port``
``answer``     P's answer; ``bodies`` what P and D are sent
``blocks``     whether P's blocks are all that a D needs
``tokens``     the ids of the tokens that a client has been sent, read from the events
``continuing`` which streams another server can continue exactly
"""
