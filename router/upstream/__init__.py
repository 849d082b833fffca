"""Calls to workers, over ``core/net/client``, and what their errors mean.

One call is one request and one answer; closing the answer aborts the request. After a ConnectError another worker may
be tried, for prefill and for decode. An AnswerTooLarge is not the worker's fault.

``events``          cuts the bytes of a stream into whole events
``content``         which events have content for a client
``worker_errors``   what a worker's error means
``whole_answers``   answers that are kept in memory as a whole
``internal_calls``  calls to internal ports, after the worker has proven that it knows the internal token
``prefill_aborts``  aborts the request on a P whose answer will not be read
``direct_releases``  releases leases on P while the lease store does not take releases
``missing_engines``  asks a P that is missing from the registry which leases it still holds
"""
