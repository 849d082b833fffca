"""A prefill rank in another process and ranks in this one, with real NIXL agents. Not a test."""

from __future__ import annotations

import base64
import functools
import json
import os
import queue
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np

from baton_serve.baton.cluster.process import pause
from baton_serve.core.protocol.handshake import RankMetadata, Shard
from baton_serve.core.protocol.steps import Connect, Connected, Read, ReadResult, Sent, TransferReport
from baton_serve.core.ucx import ucx_environment
from baton_serve.workers.rank_protocol.spec import TransferOptions
from baton_serve.workers.transfer.nixl.nixl_agent import NixlAgent
from baton_serve.workers.transfer.nixl.port import TransferAgent
from baton_serve.workers.transfer.port import RankMemory, TransferEvent
from baton_serve.workers.transfer.rank_transfer import RankTransfer
from baton_serve.workers.transfer.versions import VersionTable
from tests.kits.patience import PATIENCE_S

A = TypeVar("A", bound=TransferAgent)
ROOT = Path(__file__).parents[3]
NUM_BLOCKS = 64
BLOCK_BYTES = 65536
#: nixl asks torch for its CUDA to choose a build, and does without: importing torch takes three seconds.
RUN_PEER = "import sys; sys.modules['torch'] = None; from tests.kits.transfer import peer_main; peer_main.main()"
#: What the only rank of an engine holds.
WHOLE = Shard(first_layer=0, last_layer=2, first_head=0, last_head=2)


class PeerProcess:
    """``peer_main`` running. ``tls`` limits the transports it offers: over ``tcp`` reads take their time.

    A rank of ``num_ranks``, which have the two heads of ``DecodeRank`` to share.
    """

    def __init__(
        self, *, tls: str | None = None, base: int = 2**62, engine_id: str = "", rank: int = 0, num_ranks: int = 1
    ) -> None:
        self.engine_id = engine_id or secrets.token_hex(8)
        self.base = base
        environ = os.environ | ucx_environment("127.0.0.1") | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        if tls:
            environ["UCX_TLS"] = tls
        spec = {
            "engine_id": self.engine_id,
            "num_blocks": NUM_BLOCKS,
            "block_bytes": BLOCK_BYTES // num_ranks,
            "base": base,
            "rank": rank,
            "num_ranks": num_ranks,
            "num_heads": 2 // num_ranks,
        }
        command = [sys.executable, "-c", RUN_PEER, json.dumps(spec)]
        self._process = subprocess.Popen(
            command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        self._events: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._pump, daemon=True)
        self._reader.start()

    @functools.cached_property
    def metadata(self) -> RankMetadata:
        """Waits until it is ready; the constructor does not, so that several can start at once."""
        return msgspec.msgpack.decode(base64.b64decode(self._next("ready")["metadata"]), type=RankMetadata)

    @property
    def pid(self) -> int:
        return self._process.pid

    def __enter__(self) -> PeerProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._reader.join()
        self._process.stdin.close()
        self._process.stdout.close()

    def event(self, kind: str, meanwhile: Callable[[], object] | None = None) -> dict[str, Any]:
        """The next thing it says, which has to be of this kind. ``meanwhile`` is called over and over until then."""
        assert self.metadata
        return self._next(kind, meanwhile)

    def _next(self, kind: str, meanwhile: Callable[[], object] | None = None) -> dict[str, Any]:
        deadline = time.monotonic() + PATIENCE_S
        while meanwhile is not None and self._events.empty() and time.monotonic() < deadline:
            meanwhile()
        event = self._events.get(timeout=max(0.01, deadline - time.monotonic()))
        assert event["event"] == kind, event
        return event

    def tell(self, *command: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")

    def overwrite(self, block: int, version: int, byte: int) -> None:
        self.tell("overwrite", block, version, byte)
        self.event("overwritten")

    def stop(self) -> None:
        pause(self._process.pid)

    def go_on(self) -> None:
        os.kill(self._process.pid, signal.SIGCONT)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    @property
    def promise(self) -> int:
        """What it promised at its start."""
        return self.base + NUM_BLOCKS - 1

    def _pump(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._events.put(json.loads(line))


class Made(Generic[A]):
    """Makes agents of a kind, as ranks ask for them, and keeps them."""

    def __init__(self, kind: Callable[[str], A]) -> None:
        self.agents: list[A] = []
        self._kind = kind

    def __call__(self, name: str) -> A:
        self.agents.append(self._kind(name))
        return self.agents[-1]


class DecodeRank:
    """A rank in this process, of an engine of one or of several; it reads and can be read."""

    def __init__(
        self,
        options: TransferOptions | None = None,
        make_agent: Callable[[str], TransferAgent] = NixlAgent,
        *,
        engine_id: str = "",
        rank: int = 0,
        num_ranks: int = 1,
        num_blocks: int = NUM_BLOCKS,
        block_bytes: int = BLOCK_BYTES,
        shard: Shard = WHOLE,
    ) -> None:
        self.engine_id = engine_id or secrets.token_hex(8)
        self.cache = np.zeros((num_blocks, block_bytes), dtype=np.uint8)
        self.versions = VersionTable(num_blocks)
        self.events: queue.SimpleQueue[TransferEvent] = queue.SimpleQueue()
        self._received: list[ReadResult] = []
        self._sent: list[Sent] = []
        self._lost: list[Connected] = []
        self._num_reads = 0
        metadata = RankMetadata(
            engine_id=self.engine_id,
            rank=rank,
            num_ranks=num_ranks,
            agent_metadata=b"",
            agent_name="",
            cache_address=self.cache.ctypes.data,
            cache_memory_type="DRAM",
            cache_device_id=0,
            num_blocks=num_blocks,
            block_bytes=block_bytes,
            shard=shard,
            version_address=self.versions.address,
        )
        memory = RankMemory(metadata, self.versions)
        self.transfer = RankTransfer(memory, self.events.put, options, make_agent=make_agent)

    def __enter__(self) -> DecodeRank:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.transfer.close()

    def connect(self, *metadata: RankMetadata, engine_id: str = "") -> str:
        """The error, empty when it worked."""
        self.transfer.submit(Connect(engine_id or metadata[0].engine_id, list(metadata)))
        event = self.events.get(timeout=PATIENCE_S)
        assert isinstance(event, Connected), event
        return event.error

    def lost(self) -> Connected:
        """The next peer that is told to be gone. Before the read that found out ends; wait for it before ``connect``,
        whose answer looks the same."""
        while not self._lost:
            self._take_report()
        return self._lost.pop(0)

    def post(
        self,
        engine_id: str,
        remote: list[int],
        local: list[int],
        promise: int,
        *,
        lease_id: str = "ab",
        fresh: list[tuple[int, int]] | None = None,
    ) -> int:
        """Submit a read; its id."""
        self._num_reads += 1
        self.transfer.submit(Read(self._num_reads, engine_id, lease_id, remote, local, promise, fresh or []))
        return self._num_reads

    def result(self) -> ReadResult:
        """The next read to end."""
        while not self._received:
            self._take_report()
        return self._received.pop(0)

    def sent(self) -> Sent:
        """The next lease that all ranks of a reader have read here."""
        while not self._sent:
            self._take_report()
        return self._sent.pop(0)

    def read(
        self, peer: PeerProcess, remote: list[int], local: list[int], promise: int | None = None, **rest: Any
    ) -> ReadResult:
        """Read, wait, answer."""
        read_id = self.post(peer.engine_id, remote, local, peer.promise if promise is None else promise, **rest)
        result = self.result()
        assert result.read_id == read_id
        return result

    def bytes_of(self, *blocks: int) -> list[int]:
        """The byte each block is full of; fails when a block is mixed."""
        values = [set(self.cache[block].tolist()) for block in blocks]
        assert all(len(value) == 1 for value in values), values
        return [value.pop() for value in values]

    def _take_report(self) -> None:
        event = self.events.get(timeout=PATIENCE_S)
        if isinstance(event, Connected):
            assert event.error, "nobody has asked"
            self._lost.append(event)
            return
        assert isinstance(event, TransferReport), event
        assert event.sent or event.received, "a report of nothing"
        self._received += event.received
        self._sent += event.sent
