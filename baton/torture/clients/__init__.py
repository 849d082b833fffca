"""The clients of a run, and what they ask. Begin with ``traffic``.

``traffic``    clients that ask one question after another; ``client`` is one request of theirs
``questions``  what they ask, drawn from a seed; ``reference`` gets the right answers
``one_stream`` whether what a client reads is one stream of OpenAI's
"""
