"""The tables of other engines: where the ranks of a P have their words, as their handshake tells."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec
import numpy as np

from baton_serve.workers.vllm.fence.words import SLOT_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

#: What NIXL calls the side of a transfer that is this agent's own memory.
OWN_SIDE = "NIXL_INIT_AGENT"
MEMORY = "DRAM"


class Table(msgspec.Struct, frozen=True):
    """What a rank tells about its tables. ``address``: of slot 0, in the memory that it has registered with NIXL."""

    engine_id: str
    address: int
    num_slots: int
    #: Whether this rank itself checks what it reads from others. Routers ask for it.
    checks: bool = True
    #: The address of the word of block 0, and how many blocks have one; none where single blocks are not told apart.
    blocks_address: int = 0
    num_blocks: int = 0


class Agent(Protocol):
    """The part of a NIXL agent that is used here."""

    def get_xfer_descs(self, descs: NDArray[np.uint64], mem_type: str) -> Any: ...
    def prep_xfer_dlist(self, agent_name: str, xfer_list: Any) -> int: ...
    def release_dlist_handle(self, handle: int) -> None: ...
    def make_prepped_xfer(
        self, operation: str, own_side: int, own: Sequence[int], remote_side: int, remote: Sequence[int]
    ) -> int: ...
    def initialize_xfer(self, operation: str, own: Any, remote: Any, remote_agent: str) -> int: ...
    def transfer(self, handle: int) -> Any: ...
    def check_xfer_state(self, handle: int) -> str: ...
    def release_xfer_handle(self, handle: int) -> None: ...


def descriptors(address: int, indices: NDArray[np.int64], num_bytes: int) -> NDArray[np.uint64]:
    """``[index, (address, length, device)]`` of pieces of ``num_bytes`` that lie one after the other."""
    found = np.zeros((len(indices), 3), np.uint64)
    found[:, 0] = np.uint64(address) + indices.astype(np.uint64) * np.uint64(num_bytes)
    found[:, 1] = num_bytes
    return found


class Side(NamedTuple):
    """The slots of one agent, prepared for transfers: slot ``i`` is descriptor ``i``."""

    handle: int
    num_slots: int


def prepare(agent: Agent, owner: str, address: int, num_slots: int) -> Side:
    """Prepare ``num_slots`` slots from ``address`` of ``owner``, which NIXL knows. Raises what NIXL raises."""
    slots = descriptors(address, np.arange(num_slots), SLOT_BYTES)
    return Side(agent.prep_xfer_dlist(owner, agent.get_xfer_descs(slots, MEMORY)), num_slots)


class BlockTable(NamedTuple):
    """The words of a rank's blocks; ``agent_name``: of the rank, which NIXL knows."""

    agent_name: str
    address: int
    num_blocks: int


@dataclass(frozen=True)
class _Rank:
    slots: Side
    blocks: BlockTable


class Tables:
    """The tables of the engines that this rank has met and that have a fence."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._engines: dict[str, dict[int, _Rank]] = {}

    def __contains__(self, engine_id: str) -> bool:
        return engine_id in self._engines

    def meet(self, engine_id: str, ranks: Mapping[int, tuple[str, Table]]) -> None:
        """Add an engine: by rank, the name of its agent, which NIXL knows, and its table. Raises what NIXL raises."""
        self._engines[engine_id] = {
            rank: _Rank(
                prepare(self._agent, name, table.address, table.num_slots),
                BlockTable(name, table.blocks_address, table.num_blocks),
            )
            for rank, (name, table) in ranks.items()
        }

    def side(self, engine_id: str, rank: int, slot: int) -> int | None:
        """The handle of a rank's slots; None if there is no such slot."""
        known = self._engines.get(engine_id, {}).get(rank)
        return known.slots.handle if known is not None and slot < known.slots.num_slots else None

    def blocks(self, engine_id: str, rank: int) -> BlockTable | None:
        """Where a rank has the words of its blocks; None if it has none."""
        known = self._engines.get(engine_id, {}).get(rank)
        return known.blocks if known is not None and known.blocks.num_blocks else None

    def forget(self, engine_id: str) -> None:
        """Release what belongs to an engine, if it is known."""
        for known in self._engines.pop(engine_id, {}).values():
            self._agent.release_dlist_handle(known.slots.handle)
