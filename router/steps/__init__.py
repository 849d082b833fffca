"""What happens to a request, in order. Each step is given the router's services and the record of the request.

``admission``      whether it is let in, and who makes room for it
``run``            the loop: P, its first token to the client, D, its stream; it comes round again after a failure
``prefill``        find a P with room, have it prefill, take over its blocks; ``prefill_answer`` reads what P says
``decode``         find a D with room, have it read the blocks, wait for its first bytes
``relay``          D's stream to the client, until it ends or breaks off
``waiting``        for a worker with room, or for any worker; ``lease_limit_wait`` counts those that leases cause
``retry``          notes that a leg failed and asks ``request.attempts`` what is next; it sends nothing itself
``failures``       how a leg failed: from an exception to a row of the table
``exit``           the one end; ``end_log`` is its log line
"""
