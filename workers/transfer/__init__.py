"""Block transfer: reads of KV blocks from other engines, and the fence. Runs in its own thread of a rank process.

Begin with ``agent_loop``. Which ranks of P a rank of D reads is decided in ``workers.sharding``, and how engines learn
each other's addresses is in ``workers.handshake``.

``agent_loop``     takes commands, advances reads, reports results; ``rank_transfer`` is its thread
``reads``          D's reads, and the fence (``reads/fence``)
``read_notices``   notifies P of reads, and counts the notifications of D
``memory``         the memory of local and remote ranks
``nixl``           NIXL behind a typed port
``versions``       the local table of versions, which other engines read
``port``           what the rank calls of block transfer, and what refuses all reads
"""
