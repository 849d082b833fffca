"""The registry: which workers and routers are alive, and how busy the workers are.

Every worker and every router announces itself here, in its main process, and routers watch. Entries live in Redis and
expire unless their process announces itself again. Begin with ``store``.

``store``            the port: announce, withdraw, watch
``announcement``     what is written, for workers and for routers; ``entry_checks`` rejects impossible values
``announcer``        announces one process again and again
``signature``        signs announcements with the internal token, and checks them
``redis_registry``   the port in Redis; ``complaints`` limits its warnings; ``memory_registry`` is the port for tests
``view``             which processes a watcher believes to be alive, without I/O
"""
