"""Serves a port: connections within bounds, and the bodies of requests. Begin with ``port``."""
