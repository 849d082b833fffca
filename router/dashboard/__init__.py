"""A page to watch the router on: a history of its numbers, a snapshot of now, the stream of both, the page's files."""
