"""Reads from GPU memory of the same machine without NIXL: D maps P's memory, and one program copies all pieces.

UCX starts a copy for each piece, which takes about 10 us whatever its size.

``mapped_agent``  an agent that reads so what it can, and everything else over the agent that it wraps
``port``          what it needs of the GPU; ``workers.rank.gpu.mapped_memory`` has it
"""
