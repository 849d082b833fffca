"""The sequences of an engine: their states, and how the scheduler finds them. No I/O. Begin with ``sequence_state``.

``sequence_state``  the states as a table; ``sequence`` is one sequence with its tokens and its block table
``sequence_index``  all sequences by id and by request; ``by_urgency`` keeps some in order
"""
