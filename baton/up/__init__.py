"""What `baton up` does: what is started where, and what people see meanwhile."""
