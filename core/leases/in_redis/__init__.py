"""The lease store port in Redis (6.2 or newer). Begin with ``store``.

``store``       one Lua script per verb
``lua``         the scripts; ``lua_script`` runs one of them, also for many engines at once
``answers``     what the scripts answer, as statuses of leases
``keys``        the keys and the channel of an engine; ``batches`` of its leases
``wakeups``     P's subscription to releases
``errors``      every error of redis-py, mapped to one of the two of the port
"""
