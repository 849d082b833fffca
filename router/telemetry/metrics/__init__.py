"""The router's counters and histograms, and what a scrape of Prometheus gets."""
