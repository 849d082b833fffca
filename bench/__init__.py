"""What ``make bench`` measures: what the router adds to a request and to a token, on workers that cost nothing."""
