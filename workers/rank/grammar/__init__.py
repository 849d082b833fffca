"""Grammars where the logits are. Begin with ``library``.

``library``  compiles grammars, and follows them along sequences
``masks``    bans all other tokens of a step's rows
"""
