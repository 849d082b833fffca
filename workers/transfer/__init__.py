"""Block transfer: reads of KV blocks from other engines, and the fence. In a rank process, in a thread of its own.

Begin with ``agent_loop``. Which ranks of P a rank of D reads is decided in ``workers.sharding``, and how engines learn
each other's addresses is in ``workers.handshake``.

``agent_loop``      takes commands, advances reads, reports results; ``rank_transfer`` is its thread
``block_read``      carries out one read; ``read_machine`` is its state machine, ``read_parts`` divides it
``fence``           compares versions after a read; ``versions`` is the local table of versions, which peers read
``read_checks``     checks a read before it is posted
``read_notices``    notifies P of reads, and counts notifications of D; ``notice_codec`` is their format
``remote_engines``  the remote engines that can be read; ``remote_ranks`` are their ranks
``local_memory``    the local side of every read
``nixl_port``       NIXL behind a typed port; ``ucx`` is UCX's environment, ``network`` this machine's interfaces
``port``            what the rank needs of block transfer; ``null_transfer`` is block transfer that refuses all reads
"""
