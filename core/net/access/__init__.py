"""Which requests a port refuses before it looks at them."""
