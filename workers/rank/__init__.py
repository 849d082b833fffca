"""A rank: a process with one shard of the model, its part of the paged KV cache, and the sampler. Needs torch.

Begin with ``main``, the program, and ``runner``, which executes a step.

``receiver``       a thread that takes messages of the main process; ``outbox`` sends the answers; ``process``
``runner``         executes a step: one forward pass, then sampling; ``sequences`` are the sequences it knows
``model``          loads the model and runs it; ``config_checks`` and ``probe`` refuse models that cannot be served
``kv_cache``       the paged cache; ``batch`` computes where tokens are in it, ``attention`` reads and writes it
``sampler``        samples tokens; ``logit_edits`` are biases and penalties, ``noise`` is the randomness
``device``         chooses the device; ``distributed`` is what the ranks of an engine do together
``fingerprint``    a hash over the weights
"""
