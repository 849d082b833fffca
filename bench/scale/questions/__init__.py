"""The questions, one a file. Each has ``ask``, which returns tables and plots."""
