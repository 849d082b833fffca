"""Keeps the leases of vLLM's prefill workers alive, and ends them early.

A vLLM server tells nobody how long a lease lasts, and answers no renewal. So the deadlines are kept here, and none is
ever later than vLLM's own.

``book``           the deadlines; pure. ``connections``: which engines are connected, and when the next try is; pure
``notices``        the bytes of vLLM's notifications; pure
``remote_engine``  how to reach an engine
"""
