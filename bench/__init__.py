"""Measurements. ``make bench`` measures what the router adds to a request and to a token."""
