"""From flags, variables and files to the settings of each process."""
