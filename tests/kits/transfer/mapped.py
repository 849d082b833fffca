"""Memory of the host in the place of a GPU's: ranks of this process map what other ranks of it share. Not a test."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import msgspec
import numpy as np
from numpy.typing import NDArray

from baton_serve.core.protocol.handshake import SharedMemory
from baton_serve.workers.transfer.mapped.mapped_agent import MappedAgent
from baton_serve.workers.transfer.nixl.nixl_agent import NixlAgent
from baton_serve.workers.transfer.nixl.port import PieceList, Pieces, Region, TransferHandle

HOST = "DRAM"


class HostAsGpu:
    """``MappedMemory``: the handle is the address. It counts."""

    memory_type = "VRAM"
    copies_in_call = False

    def __init__(self) -> None:
        #: Addresses that are mapped, as often as they are.
        self.mapped: list[int] = []
        self.num_pieces = 0
        self.can_map = True
        self.has_room = True
        self.owner_has_ended = False
        #: How often somebody has asked whether a copy has ended.
        self.num_looks = 0
        #: Whether copies end; otherwise they are under way until it is set.
        self.ends = True

    def share(self, address: int) -> SharedMemory | None:
        return SharedMemory(boot_id="b", gpu="g", handle=b"%d" % address, offset=0)

    def map(self, shared: SharedMemory, num_bytes: int) -> int | None:
        if not self.can_map:
            return None
        self.mapped.append(int(shared.handle))
        return self.mapped[-1]

    def should_unmap(self, address: int, idle_s: float) -> bool:
        return self.owner_has_ended

    def unmap(self, address: int) -> None:
        self.mapped.remove(address)

    def copy(self, sources: NDArray[np.int64], targets: NDArray[np.int64], num_bytes: int) -> Callable[[], bool]:
        if not self.has_room:
            raise MemoryError("no room for addresses")
        self.num_pieces += len(sources)
        for source, target in zip(sources.tolist(), targets.tolist(), strict=True):
            ctypes.memmove(target, source, num_bytes)
        return self._has_ended

    def _has_ended(self) -> bool:
        self.num_looks += 1
        return self.ends


class HostNixl(NixlAgent):
    """NIXL, to which everything is memory of the host; it counts what it reads."""

    num_pieces = 0

    def register(self, region: Region) -> None:
        super().register(msgspec.structs.replace(region, memory_type=HOST))

    def prepare(self, pieces: Pieces, owner: str | None = None) -> PieceList:
        return super().prepare(msgspec.structs.replace(pieces, memory_type=HOST), owner)

    def post_read(
        self, local: PieceList, local_ids: NDArray[np.int32], remote: PieceList, remote_ids: NDArray[np.int32]
    ) -> TransferHandle:
        self.num_pieces += len(local_ids)
        return super().post_read(local, local_ids, remote, remote_ids)


class MappedAgents:
    """Makes the agents of ranks, and keeps what each of them has: ``memories`` and ``inner``."""

    def __init__(self) -> None:
        self.memories: list[HostAsGpu] = []
        self.inner: list[HostNixl] = []

    def __call__(self, name: str) -> MappedAgent:
        self.memories.append(HostAsGpu())
        self.inner.append(HostNixl(name))
        return MappedAgent(self.inner[-1], self.memories[-1])
