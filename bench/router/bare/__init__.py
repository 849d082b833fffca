"""Two legs in plain Python and nothing else, as a measure for what a router in Python adds. It is not to be used.

Protocols of asyncio on uvloop pass a request to P, then with P's parameters to D, and D's answer to the client. There
is no parser of HTTP or of JSON, no check, no error, no lease and no placement but taking turns: it finds its way by
the few bytes that the stub engines and the load generator of this benchmark write. It is no bound: Baton sends tokens
that come together as one chunk, and may then take less.
"""
