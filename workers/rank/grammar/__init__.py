"""Grammars where the logits are. Begin with ``library``.

``library``     compiles grammars, and begins to follow one
``constraint``  follows one sequence: which tokens may come next
``masks``       bans all other tokens of a step's rows
"""
