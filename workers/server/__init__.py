"""The worker's HTTP front: OpenAI endpoints on one port, internal endpoints on another."""
