"""Block transfer: the NIXL agent, handshakes, reads and the fence."""
