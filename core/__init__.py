"""The ground under routers and workers: messages, leases, the registry, HTTP, and what every process needs."""
