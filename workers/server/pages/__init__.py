"""All other pages of a worker. Begin with ``public``.

``public``    models, health, load and metrics, on the public port
``internal``  abort, drain and state, on the internal port, and the proof that the worker knows the internal token
"""
