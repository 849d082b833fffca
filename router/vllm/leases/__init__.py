"""Keeps the leases of vLLM's prefill workers alive, and ends them early.

A vLLM server does not tell how long a lease lasts, and answers no renewal. So the deadlines are kept here, and none is
ever later than vLLM's own.

``vllm_leases``    what the rest of the router calls, on its event loop
``book``           the deadlines; pure. ``connections``: which engines are connected, and when the next try is; pure
``unanswered``     what the agent has not answered yet, and whether it hangs; pure
``standstills``    whether this router itself stood still, so that what it reads may be old; pure
``notices``        the bytes of vLLM's notifications; pure
``remote_engine``  how to reach an engine
``side_channel``   asks what an engine's side channel says about it: ``side_channel_facts``
``agent``          the process that has the NIXL agent; ``agent_process`` keeps it running
"""
