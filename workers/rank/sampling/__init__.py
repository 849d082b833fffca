"""From logits to tokens, and to logprobs. Begin with ``sampler``.

``sampler``      samples the next token of each row
``logit_edits``  biases, bans and penalties; ``bad_words`` says which tokens would complete a banned sequence
``noise``        is the random noise, which depends on seed and position only
``logprobs``     of tokens, from raw logits; ``prompt_scores`` has those of prompts, some tokens at a time
"""
