"""The leases on P's blocks that this router keeps alive, in a thread of its own.

``lease_client``  the thread: it renews and releases; ``core.leases.renewal`` decides when, without I/O
``port``          what the rest of the router sees of it
"""
