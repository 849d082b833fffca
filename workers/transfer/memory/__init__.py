"""The memory of local and remote ranks, as lists of pieces from which a read chooses. Begin with ``remote_engines``.

``remote_engines``  the remote engines that can be read; ``remote_ranks`` has their ranks
``local_memory``    the local cache
``version_tables``  the version tables of remote ranks, and scratch tables to which they are read
"""
