"""What it costs a router to hold requests until a decode worker has room.

``scenario``   what is done to a router, in order
``processes``  the router, Redis and the ``stubs`` before and behind it
``costs``      CPU of processes; ``deadlines`` how close leases come to theirs
``tables``     the report
"""
