"""Baton's own workers: they name the tokens of a stream, keep leases in Redis, and fence their blocks.

``engine``  the implementation of ``engines.port``
``answer``  P's answer; ``bodies`` what P and D are sent
"""
