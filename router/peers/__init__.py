"""The other routers: who they are, what they answer, and when one of them has died."""
