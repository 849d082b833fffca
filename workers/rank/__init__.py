"""A rank: a process with one shard of the model, its part of the paged KV cache, and the sampler. Needs torch.

Begin with ``main``, the program, and ``runner``, which executes a step.

``receiver``     a thread that takes messages of the main process, and what sends the answers
``runner``       executes a step: one forward pass, then sampling; ``sequences`` has the sequences that the rank knows
``loading``      loads the model shard, and refuses models that Baton cannot serve
``cache``        the paged KV cache, and attention over it; ``in_place`` is the attention that reads it where it is
``graphs``       decode steps that are recorded as CUDA graphs
``cpu``, ``gpu``  programs for a device
``sampling``     samples tokens; ``row_edits`` has what a client's parameters change in logits
``device``       chooses the device; ``distributed`` has what the ranks of an engine do together
``process``      what the process prints, how many threads it uses, how it exits
"""
