"""The process that is read: ``python -m bench.block_reads.source MEMORY NUM_BLOCKS BLOCK_BYTES``.

It prints how to read it, as msgpack in hex, and lets its blocks be read until its standard input ends.
"""

from __future__ import annotations

import sys

import msgspec

from bench.block_reads.memory import make_pieces
from bench.block_reads.rank import BenchRank


def main(memory: str, num_blocks: int, block_bytes: int) -> None:
    """Serve until the standard input ends."""
    rank = BenchRank(make_pieces(memory, num_blocks, block_bytes))
    print(msgspec.msgpack.encode(rank.transfer.metadata()).hex(), flush=True)
    sys.stdin.read()
    rank.transfer.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
