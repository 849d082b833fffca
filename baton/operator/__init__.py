"""The commands that ask a router, for people who operate one."""
