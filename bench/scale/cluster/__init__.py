"""A simulated cluster.

``cluster``   puts it together and runs it; ``outcome`` counts what became of the requests
``router/``   the steps of a ``request``; what decides is the real router's code
``engines/``  the P and the D
``leases``    how long P keeps blocks, and ``kept`` which
"""
