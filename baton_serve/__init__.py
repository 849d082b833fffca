"""Baton's one name among the packages that are installed. What it consists of is beside it: see docs/structure.md."""
