"""Which rank of D reads what from which rank of P, and who has finished. Pure."""
