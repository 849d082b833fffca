"""What a worker's main process and its rank processes share, beside the messages (``core.protocol.steps``). No I/O.

``spec``    the start parameters of a rank
``errors``  the errors of a rank; ``transfer_errors`` has those of block transfer and handshakes
"""
