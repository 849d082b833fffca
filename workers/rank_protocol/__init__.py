"""What a worker's main process and its rank processes share. Only ``frames`` does I/O. Begin with ``spec``.

``spec``    the start parameters of a rank; ``transfer_options`` has those of block transfer
``frames``  how messages (``core.protocol.steps``) are sent over the socket
``errors``  the errors of a rank; ``transfer_errors`` has those of block transfer and handshakes
"""
