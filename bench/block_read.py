"""Measures how fast block reads are on this machine: two processes, two NIXL agents, host memory.

    python -m bench.block_read [--blocks 256] [--block-kib 64,256,1024] [--tls tcp]

For each block size it prints the best of several runs: memcpy, the read with and without its fence, and the longest
wait for the GIL of a thread that wants to wake every 200 microseconds. Then it prints the CPU time of an idle agent.
The numbers mean something only on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import os
import queue
import secrets
import subprocess
import sys
import threading
import time

import msgspec
import numpy as np

from bench.host_memory import host_memory
from core.protocol.handshake import RankMetadata, Shard
from core.protocol.steps import Connect, Connected, Read, ReadResult, TransferReport
from core.ucx.environment import apply_ucx_environment
from workers.rank_protocol.transfer_options import TransferOptions
from workers.transfer.port import TransferEvent

#: Reads of each size, of which the fastest counts: other processes can only make a read slower.
REPEATS = 7


class BenchRank:
    """A rank with ``num_blocks`` blocks of ones."""

    def __init__(self, num_blocks: int, block_bytes: int, options: TransferOptions | None = None) -> None:
        from workers.transfer.rank_transfer import RankTransfer

        self.engine_id = secrets.token_hex(8)
        self.cache = np.ones((num_blocks, block_bytes), dtype=np.uint8)
        self.events: queue.SimpleQueue[TransferEvent] = queue.SimpleQueue()
        shard = Shard(first_layer=0, last_layer=1, first_head=0, last_head=1)
        memory = host_memory(self.engine_id, self.cache, shard)
        self.transfer = RankTransfer(memory, self.events.put, options)

    def read(self, engine_id: str, blocks: list[int]) -> ReadResult:
        """Read blocks of an engine into the blocks of the same ids here. Raises RuntimeError when that fails."""
        self.transfer.submit(Read(1, engine_id, "ab", blocks, blocks, [0] * len(blocks), []))
        report = self.events.get()
        if not isinstance(report, TransferReport) or [result.outcome for result in report.received] != ["done"]:
            raise RuntimeError(f"the read failed: {report}")
        return report.received[0]


class Heartbeat:
    """Measures the longest wait of a thread that wants to wake every 200 microseconds."""

    def __init__(self) -> None:
        self.worst_s = 0.0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._beat)

    def __enter__(self) -> Heartbeat:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _beat(self) -> None:
        last = time.perf_counter()
        while not self._end.wait(200e-6):
            now = time.perf_counter()
            self.worst_s, last = max(self.worst_s, now - last), now


def serve(num_blocks: int, block_bytes: int) -> None:
    """The other process: let its blocks be read until the standard input ends."""
    rank = BenchRank(num_blocks, block_bytes)
    sys.stdout.write(msgspec.msgpack.encode(rank.transfer.metadata()).hex() + "\n")
    sys.stdout.flush()
    sys.stdin.read()
    rank.transfer.close()


def measure(num_blocks: int, block_bytes: int, rng: np.random.Generator) -> None:
    """Print the line of one block size. Blocks are in random order, so that NIXL cannot join neighbours."""
    command = [sys.executable, "-m", "bench.block_read", "--serve", f"{num_blocks},{block_bytes}"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        remote = msgspec.msgpack.decode(bytes.fromhex(process.stdout.readline()), type=RankMetadata)
        seconds, worst_s = {}, 0.0
        for fence in (True, False):
            rank = BenchRank(num_blocks, block_bytes, TransferOptions(unsafe_disable_fence=not fence))
            rank.transfer.submit(Connect(remote.engine_id, [remote]))
            connected = rank.events.get()
            if not isinstance(connected, Connected) or connected.error:
                raise RuntimeError(f"no connection: {connected}")
            blocks = [int(block) for block in rng.permutation(num_blocks)]
            rank.read(remote.engine_id, blocks)
            with Heartbeat() as heartbeat:
                times = [rank.read(remote.engine_id, blocks).seconds for _ in range(REPEATS)]
            seconds[fence], worst_s = min(times), max(worst_s, heartbeat.worst_s)
            rank.transfer.close()
        process.communicate("")
    num_bytes = num_blocks * block_bytes
    memcpy_s = time_memcpy(num_bytes)
    print(
        f"{block_bytes // 1024:>6} KiB x {num_blocks}:  memcpy {num_bytes / memcpy_s / 1e9:5.2f} GB/s   "
        f"read {num_bytes / seconds[True] / 1e9:5.2f} GB/s ({memcpy_s / seconds[True]:4.0%})   "
        f"{seconds[True] * 1e3:7.2f} ms with the fence, {seconds[False] * 1e3:7.2f} without   "
        f"worst wait for the GIL {worst_s * 1e3:.1f} ms"
    )


def time_memcpy(num_bytes: int) -> float:
    """Seconds that it takes to copy so many bytes within one process."""
    source, target = np.ones(num_bytes, np.uint8), np.ones(num_bytes, np.uint8)
    times = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        np.copyto(target, source)
        times.append(time.perf_counter() - started)
    return min(times)


def measure_idle() -> None:
    """Print the CPU time of an agent that has nothing to do."""
    rank = BenchRank(16, 65536)
    time.sleep(2 * TransferOptions().quiet_after_s)
    before, wall_s = time.process_time(), 3.0
    time.sleep(wall_s)
    print(f"idle agent: {(time.process_time() - before) / wall_s:.1%} of one core")
    rank.transfer.close()


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=256, help="blocks in one read")
    parser.add_argument("--block-kib", default="16,64,256,1024", help="sizes of a block in KiB")
    parser.add_argument("--tls", help="UCX_TLS, for example tcp; default: UCX chooses")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    apply_ucx_environment("127.0.0.1")
    if arguments.tls:
        os.environ["UCX_TLS"] = arguments.tls
    if arguments.serve:
        num_blocks, block_bytes = map(int, arguments.serve.split(","))
        serve(num_blocks, block_bytes)
        return
    rng = np.random.default_rng(0)
    for kib in arguments.block_kib.split(","):
        measure(arguments.blocks, int(kib) * 1024, rng)
    measure_idle()


if __name__ == "__main__":
    main()
