"""What other routers ask of this one."""
