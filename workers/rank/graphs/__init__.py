"""Steps that are recorded once, and then repeated without the model's code.

A step of few tokens starts hundreds of kernels, each of which takes the GPU less time than Python takes to start it. A
CUDA graph starts them all at once, but only with the same tensors. So the inputs of a step are copied to tensors that
never move, and the step is filled up to a size for which there is a graph. Larger steps run as ever. On a CPU the calls
of decode steps are recorded, and repeated one after the other, for any number of rows.

``decode_graphs``   computes steps of rows of one token; their inputs are ``decode_inputs``
``prefill_graphs``  computes steps with chunks of prompts, on a GPU; their inputs are ``prefill_inputs``
``trial``           what steps with chunks have to show before they are recorded
``mirror``          tensors that graphs read; what fills up a step writes to a spare block
``sizes``           for which numbers of rows and tokens there are graphs
``port``            what records work, and what computes steps by recordings; ``recorders`` records
``setup``           which graphs a rank has, and records them
"""
