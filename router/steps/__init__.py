"""What happens to a request, in order: let in, prefilled, held, decoded, relayed, ended; and tried again."""
