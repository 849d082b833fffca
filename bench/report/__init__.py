"""What a measurement hands to `make bench`: tables and plots, as data and as pages.

``model`` is the data that a benchmark writes with ``--report FILE``; ``spread`` makes one cell of several runs;
``command`` is what all command lines have in common, and ``arguments`` reads what they are given.
"""
