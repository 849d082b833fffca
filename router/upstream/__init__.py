"""Calls to workers, over ``core/net/client``, and what their errors mean.

``port``            the interface that the steps use: one request, one answer, closing is aborting
``events``          cuts the bytes of a stream into whole events
``worker_errors``   what a worker's refusal means
``internal_calls``  calls to internal ports; ``hello`` has a worker prove before that it knows the internal token
``prefill_aborts``  tells a P that its answer will not be read
"""
