"""One request: what was asked, where it is, what it holds and what was tried. It knows no step."""
