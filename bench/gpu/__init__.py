"""Steps on a GPU: keys and values gathered or read in place, with graphs and without.

``ways``    the ranks that are compared
``steps``   decode steps of so many sequences with so long a context, and chunks of prompts
``limit``   what a step takes at least
``result``  the tables and the plots
"""
