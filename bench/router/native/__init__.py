"""What would cost too much in Python: ``engine/``, the stub engines, and ``load/``, the load generator; ``build``
compiles them.
"""
