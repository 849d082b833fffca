"""What the router does for vLLM's servers alone. Other rooms ask a worker's kind; few know that it is vLLM's.

``kind``     what the router may assume of a vLLM server, and which of them can be a pair
``engine``   how a step of a request differs, as ``engines.port`` asks for it
``servers``  what vLLM servers are asked again and again
``leases``   keeps leases alive over NIXL, and ends them early
"""
