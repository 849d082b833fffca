"""Calls to workers, over ``core/net/client``, and what their errors mean.

``port``            the interface that the steps use: one request, one answer, closing is aborting
``events``          cuts the bytes of a stream into whole events
``content``         which events have content for a client
``worker_errors``   what a worker's error means
``internal_calls``  calls to internal ports, after ``hello`` had the worker prove that it knows the internal token
``prefill_aborts``  aborts the request on a P whose answer will not be read
``lease_calls``     one call to P about leases, and who makes them:
``direct_releases``  releases leases on P while the lease store does not take releases
``missing_engines``  asks a P that is missing from the registry which leases it still holds
"""
