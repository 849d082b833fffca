"""The engine: sequences, block pool and scheduler; what runs when, and which block belongs to whom."""
