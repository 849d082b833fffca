"""What the runs come to: ``numbers`` of several runs, ``goals``, ``tables``, and the ``report``."""
