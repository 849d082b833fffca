"""Which requests a port refuses before it looks at them.

``keys``       secrets that a request has to show
``hosts``      by name: what ``Host`` may say where no token guards the port
``sites``      by page: whether a browser sent the request for a page of another site
``unguarded``  both of these, for a port without a token
"""
