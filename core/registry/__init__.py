"""The registry: who is there, workers (and how busy they are) and routers.

Entries live in Redis and vanish when their owner stops.
"""
