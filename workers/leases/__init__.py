"""P's side of the leases: granted, kept and ended in a thread of their own."""
