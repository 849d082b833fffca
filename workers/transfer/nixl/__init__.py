"""NIXL and its transport UCX. Begin with ``nixl_port``.

``nixl_port``  NIXL behind a typed port; no other module imports it
``ucx``        the environment variables of UCX; ``network`` lists the network interfaces of this machine
"""
