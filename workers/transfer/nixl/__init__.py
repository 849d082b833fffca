"""NIXL: ``port`` has what is used of it, and ``nixl_agent``, which alone imports it, does that."""
