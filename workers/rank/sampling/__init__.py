"""From logits to tokens. Begin with ``sampler``.

``sampler``      samples the next token of each row
``logit_edits``  biases, bans and penalties; ``noise`` is the random noise, which depends on seed and position only
"""
