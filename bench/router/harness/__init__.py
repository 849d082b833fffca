"""What is around a router that is measured: its ``cpu`` time, the stub ``engines``, the
``load`` of one window and the ``sample`` that comes of it, and the check that a router has taken the right ``flow``.
"""
