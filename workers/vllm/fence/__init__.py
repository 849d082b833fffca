"""The fence by hand-off: one word in P's memory for each hand-off, which D reads after the blocks.

P's scheduler draws a random *word* for each request that may be handed off, and a *slot* for it (``promises``). Every
rank of P stores the word in that slot of its table in the step of the first tokens, so before P can answer, and
overwrites it before the scheduler can give the blocks to another request (``words``). P's answer carries both as a
``Promise``. A rank of D reads the blocks, then the slot of each rank that it read from (``reads``): if every slot still
has the word, all blocks were P's own when they were read.

The order is what makes this right, and needs no clock: P overwrites the word before the blocks, D reads it after them.
"""
