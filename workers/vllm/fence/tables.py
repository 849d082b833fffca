"""The tables of other engines: where the ranks of a P have their words, as their handshake tells."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec
import numpy as np

from workers.vllm.fence.words import WORD

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

#: What NIXL calls the side of a transfer that is this agent's own memory.
OWN_SIDE = "NIXL_INIT_AGENT"
MEMORY = "DRAM"


class Table(msgspec.Struct, frozen=True):
    """What a rank tells about its table. ``address``: of slot 0, in the memory that it has registered with NIXL."""

    engine_id: str
    address: int
    num_slots: int
    #: Whether this rank itself checks what it reads from others. Routers ask for it.
    checks: bool = True


class Agent(Protocol):
    """The part of a NIXL agent that is used here."""

    def get_xfer_descs(self, descs: NDArray[np.uint64], mem_type: str) -> Any: ...
    def prep_xfer_dlist(self, agent_name: str, xfer_list: Any) -> int: ...
    def release_dlist_handle(self, handle: int) -> None: ...
    def make_prepped_xfer(
        self, operation: str, own_side: int, own: Sequence[int], remote_side: int, remote: Sequence[int]
    ) -> int: ...
    def transfer(self, handle: int) -> Any: ...
    def check_xfer_state(self, handle: int) -> str: ...
    def release_xfer_handle(self, handle: int) -> None: ...


class Side(NamedTuple):
    """The words of one agent, prepared for transfers: word ``i`` is descriptor ``i``."""

    handle: int
    num_words: int


def prepare(agent: Agent, owner: str, address: int, num_words: int) -> Side:
    """Prepare ``num_words`` words from ``address`` of ``owner``, which NIXL knows. Raises what NIXL raises."""
    descriptors = np.zeros((num_words, 3), np.uint64)  # address, length, device
    descriptors[:, 0] = address + np.arange(num_words, dtype=np.uint64) * np.uint64(WORD.itemsize)
    descriptors[:, 1] = WORD.itemsize
    return Side(agent.prep_xfer_dlist(owner, agent.get_xfer_descs(descriptors, MEMORY)), num_words)


class Tables:
    """The tables of the engines that this rank has met and that have a fence."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._engines: dict[str, dict[int, Side]] = {}

    def __contains__(self, engine_id: str) -> bool:
        return engine_id in self._engines

    def meet(self, engine_id: str, ranks: Mapping[int, tuple[str, Table]]) -> None:
        """Add an engine: by rank, the name of its agent, which NIXL knows, and its table. Raises what NIXL raises."""
        self._engines[engine_id] = {
            rank: prepare(self._agent, name, table.address, table.num_slots) for rank, (name, table) in ranks.items()
        }

    def side(self, engine_id: str, rank: int, slot: int) -> int | None:
        """The handle of a rank's table; None if there is no such slot."""
        side = self._engines.get(engine_id, {}).get(rank)
        return side.handle if side is not None and slot < side.num_words else None

    def forget(self, engine_id: str) -> None:
        """Release what belongs to an engine, if it is known."""
        for side in self._engines.pop(engine_id, {}).values():
            self._agent.release_dlist_handle(side.handle)
