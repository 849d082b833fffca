"""Decode steps as CUDA graphs: the work of a step is recorded once, and then started by a single call.

A decode step of a small batch starts hundreds of kernels, each of which takes the GPU less time than Python takes to
start it. A graph starts them all at once, but only with the same tensors. So the inputs of a step are copied to tensors
that never move, and the batch is filled up to a size for which there is a graph. Prefill and mixed steps run as ever.

``decode_graphs``  which graph computes a step, and what it computes
``inputs``         the tensors that graphs read; rows that fill up a batch write to a spare block
``sizes``          for which numbers of rows there are graphs
``port``           what records work, and replays it; ``cuda_recorder`` does it on a GPU
``setup``          whether a rank has graphs, and records them
"""
