"""The engine: sequences, block pool and scheduler; decides what runs when, and who owns which block. Main process, no
torch.

Begin with ``scheduling/scheduler`` for the decisions, or with ``engine`` for how they reach the ranks.

``engine``              the asyncio shell; ``api`` is what the HTTP server calls, ``ports`` what the engine calls
``scheduling``          what runs when, without I/O
``sequences``           the sequences and their states
``blocks``              who owns which block, and the leases of hand-offs
``pending_handshakes``  waits until P can be read from; ``tombstones`` refuses late requests of a router that is gone
``timeouts``            a timer for every step and read that the ranks have not answered
``step_pace``           when the next step is sent ahead of the result of the one under way
``config``, ``counters``, ``errors``
"""
