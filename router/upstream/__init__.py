"""HTTP to workers: what a leg is sent over, what it answers, and what its errors mean.

``port``            what the steps see: one request, one answer, closing is aborting
``events``          whole events out of a stream, however it is cut
``worker_errors``   what a worker's refusal means
``internal_calls``  the way to workers' internal ports; ``hello`` has a worker prove that it knows the token first
``prefill_aborts``  tells a P of an answer that nobody will read
"""
