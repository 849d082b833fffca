"""A KV connector that vLLM itself loads: its NixlConnector, with a fence, leases that routers see, and a place in
Baton's registry.

Without a fence a D that reads after the end of P's lease may read another prompt's blocks, and nothing tells it. With
this connector on both sides D notices, and computes the prompt itself.

``connector``   what ``--kv-transfer-config`` names; the scheduler's half and the workers' half are made here
``scheduler``   in the scheduler's process: a word and a lease for each hand-off, of which it tells the workers
``worker``      in each worker: keeps the words in memory that others read, and checks those of the engine it read from
``fence``       what a word says, who writes it, and how it is read; knows nothing of vLLM
``block_layout``  with which models a part of a hand-off can be kept, and with which P gives up blocks on the way
``usable``      which hand-offs D can use at all; pure
``in_redis``    what the scheduler's process has in Redis, as the ``settings`` say: ``leases`` of hand-offs, and a
                ``presence`` in the registry, with the ``engine_load``; one ``loop_thread`` talks to Redis
``handshakes``  answers over HTTP, to whoever proves that it has the token, what vLLM's side channel tells anybody;
                ``peers`` asks others for it, and ``replay`` has vLLM's own handshake use the answers
``stats``       counters, in vLLM's metrics
``versions``    the versions of vLLM that this was run with

Only the processes of a vLLM server import this package, in vLLM's own environment. It uses private names of vLLM's, so
another version of vLLM is refused at the start.
"""
