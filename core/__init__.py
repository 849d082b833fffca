"""The ground under routers and workers: messages, leases, who there is, HTTP, and what every process needs."""
