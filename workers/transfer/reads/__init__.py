"""Block reads on D, and the fence. Begin with ``block_read``.

``block_read``   carries out one read; ``read_machine`` is its state machine, ``read_parts`` divides a read
``fence``        compares versions after a read
``read_checks``  checks a read before it is posted
"""
