"""What is counted, and what a scrape is told."""
