"""Renews the leases on P's blocks for which requests of this router wait, in a thread of its own.

``lease_client``  the thread: it renews and releases; ``core.leases.renewal`` decides when, without I/O
``port``          what the rest of the router sees of it
"""
