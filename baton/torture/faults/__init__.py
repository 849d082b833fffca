"""What is done to the processes of a run: ``nemesis`` does it, ``schedule`` says in which order."""
