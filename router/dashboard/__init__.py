"""A page that shows all routers: the last ten minutes and the present state, sent as a stream of snapshots.

``recorder``        keeps the ``history`` of this router; ``merged_history`` adds the other routers' histories
``share``           the present state of this router; ``fan_out`` asks the other routers for theirs
``snapshot``        merges all shares into one, in the form of ``schema``
``live``            the stream of snapshots; ``routes`` serves it and the files of ``page/``
"""
