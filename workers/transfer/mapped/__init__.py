"""Reads within one machine without NIXL: D maps P's memory, and copies the pieces by itself.

``mapped_agent``  an agent that reads so what it can, and everything else over the agent that it wraps
``port``          what it needs of a kind of memory: ``host_memory``, and ``workers.rank.gpu.mapped_memory``
``shared_file``   memory of the host that other processes can map
"""
