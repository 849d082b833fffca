"""What happens to any HTTP request before it is anybody's: names, sites, keys, errors."""
