"""The fence: words in P's memory, which D reads after the blocks.

*By hand-off.* P's scheduler draws a random *word* for each request that may be handed off, and a *slot* for it
(``promises``). Every rank of P stores the word in that slot of its table in the step of the first tokens, so before P
can answer, and marks it as ended before the scheduler can give the blocks to another request (``words``). P's answer
carries both as a ``Promise``. A rank of D reads the blocks, then the slot of each rank that it read from (``reads``):
if every slot still has the word, all blocks were P's own when they were read.

*By block.* P's scheduler numbers its allocations (``allocations``). Before a rank of P writes into a block, it stores
the number of the allocation that took the block (``block_words``). The slot of a hand-off that has ended keeps, as its
*stamp*, the last number before the end. D reads the words of its blocks (``block_reads``): those that no larger number
has taken since are as good as ever. D believes that only of a slot with the word of the promise, since clients may
write into a hand-off what they like.

The order is what makes this right, and needs no clock: P changes the words before it changes the blocks, and D reads
the words after the blocks.
"""
