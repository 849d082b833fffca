"""Decides what runs when, without I/O: gets events, and returns messages for the ranks. Begin with ``scheduler``.

``scheduler``        takes requests and events, and fills steps; ``scheduler_state`` has what its parts share
``step_plan``        fills a step, and keeps those that were sent; ``step_outcome`` applies what the ranks computed
``steps_ahead``      whether the next step may be sent before a result
``sequence_reads``   D's reads; ``local_handoff`` is a hand-off whose P and D are this engine
``validation``       checks whether a request can run here at all
"""
