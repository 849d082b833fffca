"""HTTP for both sides: the ports that routers and workers listen on, and what strangers may do there."""
