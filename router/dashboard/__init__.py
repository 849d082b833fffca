"""A page on which people watch all routers: the last ten minutes and a snapshot of now, sent as a stream of events.

``recorder``        keeps the ``history`` of this router; ``merged_history`` adds those of the others
``share``           what this router knows now; ``fan_out`` asks the others for theirs
``snapshot``        all shares as one, in the form of ``schema``
``live``            the stream of snapshots; ``routes`` serve it and the files of ``page/``
"""
