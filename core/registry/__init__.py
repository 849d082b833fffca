"""The registry: which workers, vLLM servers and routers are alive, and how busy they are.

Each announces itself here, and routers watch: workers and routers in their main process, vLLM servers with Baton's
connector in the process of their scheduler. Entries live in Redis and expire unless their process announces
itself again. Begin with ``store``.
"""
