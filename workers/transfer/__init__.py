"""Block transfer: the NIXL agent, reads and the fence. In a rank process, in one thread (``rank_transfer``).

``port``           what the rank asks of whoever moves blocks; ``null_transfer`` moves none
``nixl_port``      the only module that imports NIXL, behind a typed port
``ucx``            the environment UCX needs, to be set before; ``network`` knows this machine's interfaces
``agent_loop``     commands in, results out; owns the agent
``peers``          remote engines that the agent knows; ``peer_ranks`` those of their ranks that it reads
``local_memory``   our own side of every read; ``versions`` is the table of our blocks' versions, which others read
``block_read``     one read in flight, carried out; ``read_machine`` decides, ``read_parts`` divides, ``fence`` compares
``read_checks``    what must be true of a read before NIXL hears of it
``read_notices``   who is told of a read, and who has told us; ``notice_codec`` has the words

Which of P's ranks a rank reads, and who has finished, is in ``workers.sharding``; how engines meet is in
``workers.handshake``, in the main process.
"""
