"""HTTP to workers: what a leg is sent over, what it answers, and what its errors mean."""
