"""Who waits for what, who is next, and how often everybody together may try again."""
