"""Grammars in the worker's main process: from a client's form to a grammar that all ranks have compiled.

``notation``  writes a form as llguidance reads it
``compiler``  has the ranks compile it, once per form
"""
