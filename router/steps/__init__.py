"""What happens to a request, in order. Each step is given the router's services and the record of the request.

``admission``      whether it is let in, and which waiting requests are refused for it
``run``            the loop: P, its first token to the client, D, its stream; it comes round again after a failure
``prefill``        find a P with room, have it prefill, take over its blocks; ``prefill_answer`` reads what P says
``first_token``    P's token to the client
``decode``         find a D with room, have it read the blocks, wait for its first bytes
``relay``          D's stream to the client, until it ends or D dies in it; then the stream migrates
``waiting``        for a worker with room, or for any worker; ``lease_limit_wait`` counts those that leases cause
``retry``          after a failed leg: note it and ask ``request.attempts`` what is next; it sends nothing itself
``failures``       how a leg failed: from an exception to a row of ``request.failure_table``
``exit``           the one end; ``end_log`` is its log line
"""
