"""``baton top``: a router, live, in a terminal."""
