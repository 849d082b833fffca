"""The lease store port in Redis (6.2 or newer). Begin with ``store``."""
