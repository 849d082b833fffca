"""What a worker's main process and its rank processes share. No I/O but ``frames``. Begin with ``spec``.

``spec``    the start parameters of a rank; ``transfer_options`` is their part about block transfer
``frames``  how messages (``core.protocol.steps``) are sent over the socket
``errors``  the errors of a rank; ``transfer_errors`` those of block transfer and handshakes
"""
