"""HTTP as routers and workers both speak it."""
