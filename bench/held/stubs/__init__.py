"""What stands before and behind the router, as processes of their own.

``engines``  stub engines that grant leases in Redis; ``engine_port`` is their HTTP, ``granter`` keeps their leases
``clients``  clients, each with a connection of its own
``lines``    how the benchmark tells both what to do
"""
