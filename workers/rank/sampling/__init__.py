"""From logits to tokens, and to logprobs. Begin with ``sampler``.

``sampler``        samples the next token of each row
``logit_edits``    applies the biases, bans and penalties of all rows
``noise``          is the random noise, which depends on seed and position only
``prompt_scores``  has the logprobs of prompts, some tokens at a time
"""
