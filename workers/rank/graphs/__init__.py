"""Decode steps that are recorded once as CUDA graphs, and then repeated without the model's code.

A step of few tokens starts hundreds of kernels, each of which takes the GPU less time than Python takes to start it. A
CUDA graph starts them all at once, but only with the same tensors. So the inputs of a step are copied to tensors that
never move, and the step is filled up to a size for which there is a graph. All other steps run as ever.

``decode_graphs``  computes steps of rows of one token; their inputs are ``decode_inputs``
``cuda_recorder``  records work
``setup``          whether a rank has graphs, and records them
"""
