"""Which rank of D reads what from which rank of P, and which ranks have finished. No I/O. Begin with ``plan``.

Main process and ranks use it, on P and on D.

``plan``    what one rank of D reads from each rank of P; ``shards`` describes which parts of a model the ranks have
``gather``  counts the reports of several ranks until all have finished
"""
