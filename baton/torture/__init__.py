"""``baton torture``: a whole Baton under load while its processes die, and what came of it.

Five parts, a file or a few each: ``cluster`` (the processes), ``traffic`` with ``client`` and ``asks`` (who asks what),
``nemesis`` with ``deck`` (what happens to whom and when), ``validate`` with ``settle`` (whether everybody got what is
theirs, and whether all of it was given back), ``report``. ``storm`` puts them together, ``costs`` measures how long
blocks are held in vain.
"""
