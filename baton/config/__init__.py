"""Makes the settings of each process from flags, environment variables and files."""
