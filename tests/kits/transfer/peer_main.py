"""A rank of a prefill engine as a process of its own, told what to do by JSON lines. Not a test."""

from __future__ import annotations

import base64
import json
import sys
import threading
import time

import msgspec
import numpy as np

from baton_serve.core.protocol.handshake import RankMetadata, Shard
from baton_serve.core.protocol.steps import TransferReport
from baton_serve.workers.transfer.port import RankMemory, TransferEvent
from baton_serve.workers.transfer.rank_transfer import RankTransfer
from baton_serve.workers.transfer.versions import VersionTable


def say(**message: object) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def heard(event: TransferEvent) -> None:
    if isinstance(event, TransferReport):
        for sent in event.sent:
            say(event="sent", lease_id=sent.lease_id, reader=sent.reader)


class Prefill:
    """Blocks full of one byte each; block ``i`` starts as byte ``i % 251``. ``num_heads`` are those of one rank."""

    def __init__(
        self,
        *,
        engine_id: str,
        num_blocks: int,
        block_bytes: int,
        base: int,
        rank: int,
        num_ranks: int,
        num_heads: int,
    ) -> None:
        self.base = base
        self.cache = np.empty((num_blocks, block_bytes), dtype=np.uint8)
        self.cache[:] = (np.arange(num_blocks) % 251)[:, None]
        self.versions = VersionTable(num_blocks)
        self.versions.store([(i, base + i) for i in range(num_blocks)])
        metadata = RankMetadata(
            engine_id=engine_id,
            rank=rank,
            num_ranks=num_ranks,
            agent_metadata=b"",
            agent_name="",
            cache_address=self.cache.ctypes.data,
            cache_memory_type="DRAM",
            cache_device_id=0,
            num_blocks=num_blocks,
            block_bytes=block_bytes,
            shard=Shard(first_layer=0, last_layer=2, first_head=rank * num_heads, last_head=(rank + 1) * num_heads),
            version_address=self.versions.address,
        )
        self.transfer = RankTransfer(RankMemory(metadata, self.versions), heard)
        self.lock = threading.Lock()
        self.churning = threading.Event()

    def overwrite(self, block: int, version: int, byte: int) -> None:
        """As an engine does: first the version, then the data."""
        self.versions.store([(block, version)])
        self.cache[block] = byte

    def churn(self) -> None:
        """Overwrite all blocks over and over: block ``b`` of version ``v`` holds byte ``v % 251``."""
        version = self.base + 1000
        while self.churning.is_set():
            with self.lock:
                for block in range(len(self.cache)):
                    version += 1
                    self.overwrite(block, version, version % 251)
            time.sleep(0.002)  # let some reads through

    def promise(self) -> None:
        with self.lock:
            say(event="promise", promise=int(self.versions.array.max()), versions=self.versions.array.tolist())


def main() -> None:
    prefill = Prefill(**json.loads(sys.argv[1]))
    say(event="ready", metadata=base64.b64encode(msgspec.msgpack.encode(prefill.transfer.metadata())).decode())
    for line in sys.stdin:
        match json.loads(line):
            case ["overwrite", block, version, byte]:
                prefill.overwrite(block, version, byte)
                say(event="overwritten")
            case ["churn"]:
                prefill.churning.set()
                threading.Thread(target=prefill.churn, daemon=True).start()
            case ["promise"]:
                prefill.promise()
            case ["close"]:
                break
    prefill.churning.clear()
    prefill.transfer.close()
