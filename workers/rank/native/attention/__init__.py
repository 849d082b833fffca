"""Attention by native programs: that of prompts, and of rows of one token in the paged cache.

``tiled``   causal attention of several tokens by tiles; ``causal`` calls it, or has torch compute the products
``one_token``  rows of one token by tiles, with the same results; ``paged`` where there is no AVX512
``decode``  calls one of these two
``parts``   what both programs of tiles compute in the same way, and ``layout`` how they lay out keys and values
``scores``  the softmax for torch's products
"""
