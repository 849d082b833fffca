"""What a client's parameters change in the logits of its own sequence, kept from step to step.

``row_edits``  biases, bans and penalties of one sequence
``bad_words``  which tokens would complete a banned sequence
"""
