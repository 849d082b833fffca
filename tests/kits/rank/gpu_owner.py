"""A process that shares memory of the first GPU: ``python -m tests.kits.rank.gpu_owner PIECES BYTES``. Not a test.

Byte ``b`` of piece ``p`` is ``(p + b) % 251``. It prints how to map the memory, as msgpack in hex, and keeps it
until its standard input ends.
"""

from __future__ import annotations

import sys

import msgspec
import torch

from baton_serve.workers.rank.device import use_on_this_thread
from baton_serve.workers.rank.gpu.mapped_memory import GpuMemory


def pieces(num_pieces: int, num_bytes: int) -> torch.Tensor:
    """What the process has, in memory of the host."""
    return ((torch.arange(num_pieces)[:, None] + torch.arange(num_bytes)) % 251).to(torch.uint8)


def main(num_pieces: int, num_bytes: int) -> None:
    use_on_this_thread(0)
    owned = pieces(num_pieces, num_bytes).to("cuda:0")
    torch.cuda.synchronize()
    print(msgspec.msgpack.encode(GpuMemory(owned.device).share(owned.data_ptr())).hex(), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
