"""What stands before and behind the router, as processes of their own.

``prefill``  stub engines that grant leases in Redis, and keep them as workers do
``decode``   stub engines that are full until they have room, and then read at once
``clients``  clients, each with a connection of its own
``lines``    how the benchmark tells all of them what to do

``engine_port`` is the HTTP of engines, ``announcing`` what they say of themselves in the registry.
"""
