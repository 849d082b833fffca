"""The engine: sequences, block pool and scheduler; what runs when, and who owns which block. Main process, no torch.

Begin with ``scheduler`` for the decisions, or with ``engine`` for how they reach the ranks.

``engine``           the asyncio shell; ``api`` is what the HTTP server calls, ``ports`` what the engine calls
``scheduler``        what runs when, without I/O; ``scheduler_state`` is what its parts share
``step_plan``        fills a step; ``step_outcome`` applies what the ranks computed
``sequence``         one sequence; ``sequence_state`` its states, ``sequence_index`` finds it, ``wait_queue`` orders it
``block_pool``       who owns which block; ``block_hash`` identifies content, ``block_audit`` checks the counts
``block_reads``      D's reads; ``local_handoff`` when P and D are one; ``pending_handshakes`` waits until P is known
``lease_index``      leases by id and by request; ``tombstones`` refuses late requests of a router that is gone
``validation``       whether a request can run here at all; ``config``, ``counters``, ``errors``
``token_stream``     the tokens of one sequence on their way to the HTTP server
``timeouts``         a timer for every step and read that the ranks have not answered
"""
