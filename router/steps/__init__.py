"""The steps of a request, in order. Each is an object that has what it works with; ``router.build`` makes them.

``admission``    whether the request is admitted, and which waiting requests are displaced by it
``intake``       the steps that the front calls, in one object
``records``      the record of an admitted request
``run``          the loop: P, P's first token to the client, D, D's stream; again after a failure. It alone moves the
                 request from one state to the next
``choices``      the same for a request of several answers, each of which goes through ``run``
``attempt``      one attempt of a leg: find a worker with room, ask it, take its answer
``prefill``      the first leg, also of several choices of one prompt
``decode``       the second leg: D reads the blocks; the attempt ends with D's first bytes
``relay``        passes on D's stream to the client until it ends, or until D dies; then the stream migrates
``waiting``      wait for a worker with room, or for any worker
``judge``        after a failure: holds it against the worker, and asks ``request.attempts`` what is next; sends nothing
``failures``     how a leg failed: maps an exception to a ``Failure`` of ``request.failure_table``
``exit``         where every request ends; ``end_log`` writes its log line
"""
