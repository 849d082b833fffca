"""Workers: one engine (a scheduler with its ranks) behind one HTTP port.

``engine``    decides: sequences, block pool, scheduler (no torch, no I/O in the cores)
``rank``      executes: one process with the model shard, the paged cache and the sampler (torch)
``transfer``  moves blocks: NIXL agent, handshakes, reads, fence
``server``    speaks HTTP: the OpenAI endpoints and the internal port
"""
