"""Grammars in the worker's main process: from a client's form to a grammar that all ranks have compiled.

``notation``       writes a form as llguidance reads it; ``matchers`` compiles that, also in ranks
``schemas``        says in llguidance's words what a JSON schema says in others
``trial``          tries each form in a process that may die of it
``rank_grammars``  which grammars the ranks have
``compiler``       puts these together, once per form
``sentences``      what the library says, in words for clients
"""
