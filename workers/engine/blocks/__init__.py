"""Which blocks of the KV cache are used, leased, cached or free. No I/O. Begin with ``block_pool``.

``block_pool``   who owns which block; ``block_hash`` identifies content
``lease_index``  the leases of hand-offs, by id and by request
"""
