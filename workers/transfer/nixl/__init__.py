"""NIXL. ``nixl_port`` has it behind a typed port; no other module here imports it."""
