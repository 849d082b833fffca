"""A request for several answers: ``n``, ``best_of``, or a list of prompts. Each answer is a choice.

``whole``           the record of such a request, which has an ``Exchange`` for each choice
``plan``            from the fields of a body to the bodies and ids of the choices
``reply``           what the choices write, on its way to the client; ``merging`` makes one answer of several
``shared_prefill``  the blocks that the first choice of a prompt leaves for the others, and the lease on them
"""
