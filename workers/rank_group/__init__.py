"""The ranks of one engine, seen from the main process: started together, told the same, ended together. No torch."""
