"""The leases on P's blocks that this router keeps alive, in a thread of its own."""
