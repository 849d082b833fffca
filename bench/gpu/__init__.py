"""Steps on a GPU: keys and values gathered or read in place, with graphs and without.

``ways``    the ranks that are compared, and what a step takes at least
``steps``   decode steps of so many sequences with so long a context, and chunks of prompts
``result``  the tables and the plots
"""
