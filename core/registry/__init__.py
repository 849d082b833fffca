"""The registry: which workers, vLLM servers and routers are alive, and how busy they are.

Each announces itself here, and routers watch: workers and routers in their main process, vLLM servers with Baton's
connector in the process of their scheduler. Entries live in Redis and expire unless their process announces
itself again. Begin with ``store``.

``store``            the port: announce, withdraw, watch
``announcement``     what is written, for workers, vLLM servers and routers; ``entry_checks`` rejects impossible values
``announcer``        announces one process again and again
``signature``        signs announcements with the internal token, and checks them
``redis_registry``   the port in Redis; ``complaints`` limits its warnings; ``memory_registry`` is the port for tests
``view``             which processes a watcher believes to be alive, without I/O
"""
