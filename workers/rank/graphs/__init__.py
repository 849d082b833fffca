"""Decode steps that are recorded once, and then repeated without the model's code.

A decode step of a small batch starts hundreds of kernels, each of which takes the GPU less time than Python takes to
start it. A CUDA graph starts them all at once, but only with the same tensors. So the inputs of a step are copied to
tensors that never move, and the batch is filled up to a size for which there is a graph. Prefill and mixed steps run as
ever. On a CPU the calls are recorded, and repeated one after the other, for any number of rows.

``decode_graphs``  which graph computes a step, and what it computes
``inputs``         the tensors that graphs read; rows that fill up a batch write to a spare block
``sizes``          for which numbers of rows there are graphs
``port``           what records work, and replays it; ``cuda_recorder`` does it on a GPU, ``cpu_recorder`` on a CPU
``tape``           what a step on a CPU calls, and ``straight_line`` makes one function of it
``setup``          whether a rank has graphs, and records them
"""
