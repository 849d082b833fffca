"""Block transfer: the NIXL agent, handshakes, reads and the fence.

In a rank process, in one thread (``rank_transfer``):

``nixl_port``      the only module that imports NIXL, behind a typed port
``ucx``            the environment UCX needs, to be set before; ``network`` knows this machine's interfaces
``agent_loop``     commands in, results out; owns the agent
``peers``          remote engines that the agent knows; ``peer_ranks`` those of their ranks that it reads
``local_memory``   our own side of every read
``block_read``     one read in flight, carried out; ``read_machine`` decides, ``read_parts`` divides, ``fence`` compares
``read_checks``    what must be true of a read before NIXL hears of it
``plan``           which of P's ranks one of D's ranks reads, and what of each; ``shards`` has the geometry
``notices``        who is told of a read, and who has told us: ``notification`` has the words, ``gather`` the count

In the main process, without NIXL:

``handshake_server``  answers for our own ranks
``plan``              can two engines be paired at all?
``handshake_pool``    which remote engines are known; ``handshake_fetch`` asks them,
                      at the addresses that ``handshake_resolver`` finds
"""
