"""Whom a port answers.

``keys``       secrets that a request has to show
``hosts``      the names that a port may be called by where no token guards it
``sites``      whether a browser sent a request for a page that somebody else made
``unguarded``  a port without a token: both of these together
"""
