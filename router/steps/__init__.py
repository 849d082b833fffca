"""The steps of a request, in order. Each step gets the router's services and the record of the request.

``admission``      whether the request is admitted, and which waiting requests are displaced by it
``run``            the loop: P, P's first token to the client, D, D's stream; repeated after a failure
``choices``        the same for a request of several answers, each of which goes through ``run``
``prefill``        find a P with room, have it prefill, take over its blocks; ``prefill_answer`` parses P's answer
``shared_prefill`` of several choices of one prompt the first has P prefill, and the others take over its blocks
``first_token``    send P's token to the client
``decode``         find a D with room, have it read the blocks, wait for its first bytes
``relay``          pass on D's stream to the client until it ends, or until D dies; then the stream migrates
``waiting``        wait for a worker with room, or for any worker; ``lease_limit_wait`` counts waits caused by leases
``retry``          after a failed leg: record it and ask ``request.attempts`` what is next; sends nothing itself
``failures``       how a leg failed: maps an exception to a ``Failure`` of ``request.failure_table``
``exit``           where every request ends; ``end_log`` writes its log line
"""
