"""Attention by native programs: that of prompts, and of rows of one token in the paged cache.

``tiled``   causal attention of several tokens by tiles; ``causal`` calls it, or has torch compute the products
``one_token``  rows of one token by tiles, with the same results; ``paged`` those that tiles cannot
``decode``  calls one of these two
``softmax``  what both programs of tiles compute in the same way
``layout``  where keys and values are, and how they are laid out for tiles
``scores``  the softmax for torch's products
"""
