"""A worker: one engine (a scheduler with its ranks) behind a public and an internal HTTP port. Begin with ``worker``.

In the main process, without torch and NIXL:

``main``           runs one worker; ``worker`` builds and stops its parts, ``app`` builds its two ASGI applications
``engine``         decides what runs when, and which sequence or lease owns which block
``server``         serves HTTP: the OpenAI endpoints and the internal port
``text``           turns prompts into tokens (``tokenizer``) and tokens into text (``detokenizer``)
``leases``         grants and ends P's leases (``keeper``), in threads
``handshake``      fetches from other engines what is needed to read their memory, and serves the same to them
``rank_group``     starts the rank processes, and merges their answers into one
``settings``       the settings; ``engine_setup`` makes of them what ranks and engine are built with

In a rank process:

``rank``           computes: loads the model shard, executes steps over the paged cache, samples tokens (``sampling``)
``transfer``       reads blocks from other engines and checks the fence (``reads``), with NIXL

In both, without I/O:

``rank_protocol``  frames, start parameters and errors between the main process and its ranks
``sharding``       which rank of D reads what from which rank of P, and which ranks have finished
``limits``         upper bounds of what a hand-off or a handshake contains

In the processes of a vLLM server, and nowhere else:

``vllm``           a KV connector that vLLM loads, with a fence
"""
