"""Which pieces of a version table are read, and to which scratch table."""

from __future__ import annotations

from typing import cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton_serve.workers.rank_protocol.transfer_errors import BackendFailedError
from baton_serve.workers.transfer.memory.version_tables import PAGE_VERSIONS, ScratchTables, versions_of
from baton_serve.workers.transfer.nixl.port import PieceList, Pieces, Region, TransferAgent
from tests.kits.transfer.shards import engine, shards


class Lists:
    """An agent that only makes lists."""

    def __init__(self) -> None:
        self.num_lists = 0
        self.registered: list[int] = []
        self.is_broken = False

    def register(self, region: Region) -> None:
        self.registered.append(region.address)

    def prepare(self, pieces: Pieces, owner: str | None = None) -> PieceList:
        if self.is_broken:
            raise BackendFailedError("no list")
        self.num_lists += 1
        return pieces

    def release_list(self, pieces: PieceList) -> None:
        self.num_lists -= 1


def lists() -> tuple[Lists, TransferAgent]:
    agent = Lists()
    return agent, cast("TransferAgent", agent)


def ranges(pieces: Pieces, start: int) -> list[tuple[int, int]]:
    """Offset and length of every piece."""
    return [(row.address + i * row.stride - start, row.num_bytes) for row in pieces.rows for i in range(row.count)]


@given(st.integers(1, 4 * PAGE_VERSIONS + 3), st.data())
def test_every_version_that_is_wanted_is_read_to_its_own_place(num_blocks: int, data: st.DataObject) -> None:
    blocks = data.draw(st.lists(st.integers(0, num_blocks - 1), min_size=1, max_size=9))
    (remote, *_) = engine(shards(2, 2, 1, 1), num_blocks=num_blocks)
    table = ScratchTables(lists()[1]).take(num_blocks)
    here, there = table.pieces_for(np.array(blocks, dtype=np.int32), num_blocks)
    local = [ranges(table.pieces, int(table.array.ctypes.data))[i] for i in here]
    assert local == [ranges(versions_of(remote), remote.version_address)[i] for i in there]
    read = {offset // 8 + i for offset, num_bytes in local for i in range(num_bytes // 8)}
    assert set(blocks) <= read <= set(range(num_blocks))


def test_few_descriptors_read_many_versions() -> None:
    table = ScratchTables(lists()[1]).take(64 * PAGE_VERSIONS)
    scattered = np.arange(0, 64 * PAGE_VERSIONS, 7, dtype=np.int32)
    here, there = table.pieces_for(scattered, 64 * PAGE_VERSIONS)
    assert len(here) == len(there) == 64


def test_a_table_has_one_user_at_a_time() -> None:
    tables = ScratchTables(lists()[1])
    first, second = tables.take(100), tables.take(100)
    assert first is not second
    tables.give_back(first)
    assert tables.take(100) is first


def test_memory_that_was_registered_for_a_table_without_a_list_is_kept_for_the_next_table() -> None:
    agent, as_agent = lists()
    tables = ScratchTables(as_agent)
    agent.is_broken = True
    for _ in range(3):
        with pytest.raises(BackendFailedError):
            tables.take(10)
    agent.is_broken = False
    taken = tables.take(10)
    assert agent.registered == [taken.array.ctypes.data]
    tables.take(10)
    assert len(agent.registered) == 2
    tables.close()
    assert agent.num_lists == 0


def test_a_small_table_is_not_given_to_a_large_engine_and_all_lists_are_released() -> None:
    agent, as_agent = lists()
    tables = ScratchTables(as_agent)
    tables.reserve(2, 10)
    tables.reserve(2, 20)
    assert agent.num_lists == 2
    assert tables.take(3 * PAGE_VERSIONS).capacity == 4 * PAGE_VERSIONS
    tables.close()
    assert agent.num_lists == 0
