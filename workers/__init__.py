"""Workers: one engine (a scheduler with its ranks) behind one public and one internal HTTP port.

In the main process, without torch and NIXL:

``main``           runs one worker; ``worker`` builds its parts and ends them in order, ``app`` makes its applications
``engine``         decides: sequences, block pool, scheduler (no I/O in the cores)
``server``         speaks HTTP: the OpenAI endpoints and the internal port
``text``           from prompts to tokens and from tokens to text
``leases``         P's leases, kept in threads of their own
``handshake``      how engines get to know each other
``rank_group``     the ranks, started together and taken for one
``settings``       what a worker can be told; ``engine_setup`` and ``stores`` make of it what the engine is built with

In a rank process:

``rank``           executes: the model shard, the paged cache and the sampler (torch)
``transfer``       moves blocks: NIXL agent, reads, fence

In both, and pure:

``rank_protocol``  frames, start parameters and errors between main process and ranks
``sharding``       which rank of D reads what from which rank of P, and who has finished
``limits``         how large what a hand-off names may be
"""
