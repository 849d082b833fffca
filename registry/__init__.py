"""The registry: which workers exist and how busy they are. Records live in Redis and vanish when their owner stops."""
