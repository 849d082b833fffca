"""The process that reads and copies: ``python -m bench.block_reads.reader CASE`` prints its findings, both as JSON."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from statistics import median
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from baton_serve.core.protocol.handshake import RankMetadata
from baton_serve.core.ucx import apply_ucx_environment
from baton_serve.workers.rank_protocol.spec import TransferOptions
from bench.block_reads.findings import HOST, Case, Findings, Sample
from bench.block_reads.memory import can_read, make_pieces
from bench.block_reads.rank import BenchRank

#: Small reads are repeated until they have moved so many bytes, but not more often than ``MAX_REPEATS``.
REPEAT_BYTES = 32 * 2**20
MAX_REPEATS = 21


class Reader:
    """Two ranks over one cache, with the fence and without, and as much memory of its own as the other process has."""

    def __init__(self, case: Case, remote: RankMetadata) -> None:
        self._engine_id = remote.engine_id
        self._num_sources = remote.num_blocks
        self._random = np.random.default_rng()
        self._cache = make_pieces(case.memory, max(case.counts), case.piece_bytes)
        self._own_source = make_pieces(case.memory, self._num_sources, case.piece_bytes)
        self._fenced = BenchRank(self._cache)
        self._unfenced = BenchRank(self._cache, TransferOptions(unsafe_disable_fence=True))
        for rank in (self._fenced, self._unfenced):
            rank.connect(remote)

    def sample(self, num_blocks: int, num_repeats: int) -> Sample:
        """Copy and read in turn; the pieces are others each time, so that no cache has them."""
        kinds: list[Callable[[int], tuple[float, float]]] = [
            self._copy,
            lambda num: self._read(self._fenced, num),
            lambda num: self._read(self._unfenced, num),
        ]
        took: list[list[tuple[float, float]]] = [[], [], []]
        for repeat in range(num_repeats):
            for kind in np.roll(range(len(kinds)), repeat):
                took[kind].append(kinds[kind](num_blocks))
        copies, fenced, unfenced = ([median(column) for column in zip(*rows, strict=True)] for rows in took)
        return Sample(num_blocks, copies[0], fenced[0], unfenced[0], fenced[1])

    def close(self) -> None:
        """Forget the other process."""
        self._fenced.transfer.close()
        self._unfenced.transfer.close()

    def _copy(self, num_blocks: int) -> tuple[float, float]:
        """The plain copy, from memory of this process."""
        chosen, start = self._draw(num_blocks)
        seconds = self._own_source.copy(chosen, self._cache, start)
        return seconds, seconds

    def _read(self, rank: BenchRank, num_blocks: int) -> tuple[float, float]:
        remote, start = self._draw(num_blocks)
        return rank.read(self._engine_id, remote, np.arange(start, start + num_blocks))

    def _draw(self, num_blocks: int) -> tuple[NDArray[Any], int]:
        """Pieces in random order, so that no two are neighbours, and where a run of the cache begins for them."""
        chosen = self._random.permutation(self._num_sources)[:num_blocks]
        return chosen, int(self._random.integers(self._cache.num_pieces - num_blocks + 1))


def measure(case: Case) -> Findings:
    """Start the other process, measure, end it. Raises RuntimeError and TransferError."""
    num_blocks = case.source_bytes // case.piece_bytes
    sizes = [str(num_blocks), str(case.piece_bytes)]
    command = [sys.executable, "-m", "bench.block_reads.source", case.memory, *sizes]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as source:
        line = source.stdout.readline() if source.stdout else ""
        remote = msgspec.msgpack.decode(bytes.fromhex(line), type=RankMetadata)
        reader = Reader(case, remote)
        for count in case.counts:
            reader.sample(count, 1)
        runs = [[reader.sample(count, repeats(count, case)) for count in case.counts] for _ in range(case.num_runs)]
        may_read = case.memory != HOST or can_read(source.pid, remote.cache_address)
        reader.close()
        source.communicate("")
    return Findings(case, may_read, runs)


def repeats(num_blocks: int, case: Case) -> int:
    """How often a read is repeated within one run."""
    return min(MAX_REPEATS, max(1, REPEAT_BYTES // (num_blocks * case.piece_bytes)))


def main(case: Case) -> None:
    """Measure one case and print the findings."""
    apply_ucx_environment("127.0.0.1")
    if case.tls:
        os.environ["UCX_TLS"] = case.tls
    print(msgspec.json.encode(measure(case)).decode())


if __name__ == "__main__":
    main(msgspec.json.decode(sys.argv[1], type=Case))
