"""Everything that the router does for vLLM's servers alone, and nothing else: the rest asks a worker's kind.

``kind``     what the router may assume of a vLLM server, and which of them can be a pair
``engine``   how a step of a request differs, as ``engines.port`` asks for it
``servers``  what vLLM servers are asked again and again
``leases``   keeps leases alive over NIXL, and ends them early
"""
