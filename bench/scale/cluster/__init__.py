"""A simulated cluster.

``cluster``    puts it together and runs it; ``outcome`` counts what became of the requests
``router``     the steps of a request (``request``); what decides is the real router's code, in ``decisions``
``prefill``    a P, and ``decode`` a D; ``machine`` is what they share, ``ports`` what they tell a router
``leases``     how long P keeps blocks; ``cpu`` is the core of a router
"""
