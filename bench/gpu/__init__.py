"""Decode steps on a GPU: keys and values gathered or read in place, with graphs and without.

``ways``    the ranks that are compared
``steps``   decode steps of so many sequences with so long a context
``limit``   what a step takes at least
``result``  the table and the plot
"""
