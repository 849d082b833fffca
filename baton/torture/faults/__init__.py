"""The faults of a run: ``nemesis`` injects them into processes, in the order of ``schedule``."""
