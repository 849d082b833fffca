"""The engine: sequences, block pool and scheduler; what runs when, and which block belongs to whom.

``engine``           the asyncio shell: no polling; ``api`` is what HTTP asks of it, ``ports`` what it asks of others
``scheduler``        what runs when, without I/O; ``scheduler_state`` has the moves of a sequence with its blocks
``step_plan``        fills a step; ``step_outcome`` applies what the ranks computed
``sequence``         one sequence; ``sequence_state`` its states, ``sequence_index`` finds it, ``wait_queue`` orders it
``block_pool``       who owns which block; ``block_hash`` names contents, ``block_audit`` counts again from the blocks
``block_reads``      D's reads; ``local_handoff`` is a hand-off to oneself; ``handshakes`` waits until P is known
``lease_index``      leases by id and by request; ``tombstones`` are requests of which nothing is taken for a while
``validation``       whether a request can run here at all; ``config``, ``counters``, ``errors``
``token_stream``     the tokens of one sequence on their way to whoever asked
``timeouts``         one timer for all that ranks were asked
"""
