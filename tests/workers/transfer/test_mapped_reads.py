"""Reads from memory that a rank has mapped: as exact and as fenced as those of NIXL, which reads what is not mapped."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import product

import pytest

from baton_serve.core.protocol.handshake import Shard
from baton_serve.core.protocol.steps import CancelRead
from baton_serve.workers.rank_protocol.spec import TransferOptions
from tests.kits.patience import PATIENCE_S
from tests.kits.transfer.groups import CELL_BYTES, FIRST_FREE, NUM_BLOCKS, NUM_HEADS, NUM_LAYERS, Group
from tests.kits.transfer.mapped import MappedAgents

SPLITS = [(1, 1), (3, 1), (2, 2)]
REMOTE, LOCAL = [5, 0, 3], [FIRST_FREE + 4, FIRST_FREE, FIRST_FREE + 7]
BLOCK_BYTES = NUM_HEADS * NUM_LAYERS * CELL_BYTES


class GpuGroup(Group):
    """A group whose ranks believe that their caches are in memory of a GPU."""

    def __init__(self, tp: int = 1, pp: int = 1, options: TransferOptions | None = None) -> None:
        self.agents = MappedAgents()
        super().__init__(tp, pp, options=options, make_agent=self.agents, memory_type="VRAM")

    @property
    def num_copied(self) -> int:
        """Pieces that were copied without NIXL."""
        return sum(memory.num_pieces for memory in self.agents.memories)

    @property
    def num_read(self) -> int:
        """Pieces that NIXL has read."""
        return sum(inner.num_pieces for inner in self.agents.inner)


def overlap(one: Shard, other: Shard) -> bool:
    heads = max(one.first_head, other.first_head) < min(one.last_head, other.last_head)
    return heads and max(one.first_layer, other.first_layer) < min(one.last_layer, other.last_layer)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


@pytest.mark.parametrize("here", SPLITS, ids=lambda split: f"{split[0]}x{split[1]}-reads")
@pytest.mark.parametrize("there", SPLITS, ids=lambda split: f"{split[0]}x{split[1]}")
def test_every_byte_arrives_and_nixl_reads_the_versions_only(here: tuple[int, int], there: tuple[int, int]) -> None:
    with GpuGroup(*here, options=TransferOptions(piece_bytes=BLOCK_BYTES)) as reader, GpuGroup(*there) as source:
        reader.connect(source)
        reader.post(source, REMOTE, LOCAL, "lease")
        results = reader.results()
        assert [(result.outcome, result.stale_blocks) for result in results] == [("done", [])] * len(results)
        assert sum(result.num_bytes for result in results) == len(REMOTE) * BLOCK_BYTES
        assert reader.num_copied == sum(result.num_descriptors for result in results)
        # All versions of a rank are on one page that is not full, so each of them is a piece.
        assert reader.num_read == NUM_BLOCKS * sum(overlap(*pair) for pair in product(reader.parts, source.parts))
        assert reader.holds(source, REMOTE, LOCAL)
        assert len(source.sent()) == len(source.ranks)


def test_blocks_that_were_overwritten_are_stale() -> None:
    with GpuGroup(2) as reader, GpuGroup(1) as source:
        reader.connect(source)
        source.ranks[0].versions.store([(0, source.promise + 1)])
        reader.post(source, REMOTE, LOCAL, "lease")
        assert [(result.outcome, result.stale_blocks) for result in reader.results()] == [("stale", [LOCAL[1]])] * 2
        assert reader.num_copied


@pytest.mark.parametrize("lacks", ["can_map", "has_room"])
def test_memory_that_cannot_be_mapped_or_copied_is_read_by_nixl(lacks: str) -> None:
    with GpuGroup(2) as reader, GpuGroup(2) as source:
        for memory in reader.agents.memories:
            setattr(memory, lacks, False)
        reader.connect(source)
        reader.check_read(source, REMOTE, LOCAL)
        assert reader.num_copied == 0


@pytest.mark.parametrize("reader_shares", [True, False], ids=["to-host", "from-host"])
def test_between_a_gpu_and_the_host_nixl_reads(*, reader_shares: bool) -> None:
    """One side's cache is in memory of the host; both have the agents of a GPU."""
    agents = MappedAgents()
    host = Group(1, make_agent=agents)
    with host, GpuGroup(1) as gpu:
        reader, source = (gpu, host) if reader_shares else (host, gpu)
        reader.connect(source)
        reader.check_read(source, REMOTE, LOCAL)
        assert not any(memory.num_pieces for memory in (*agents.memories, *gpu.agents.memories))


def test_memory_is_unmapped_when_an_engine_is_forgotten() -> None:
    with GpuGroup(2) as reader, GpuGroup(3) as source:
        for _ in range(2):
            reader.connect(source)
            reader.check_read(source, REMOTE, LOCAL)
            assert [len(memory.mapped) for memory in reader.agents.memories] == [2, 2]
            reader.disconnect(source)
            until(lambda: not any(memory.mapped for memory in reader.agents.memories))


def test_memory_whose_owner_has_ended_is_unmapped_and_mapped_again_if_it_has_not() -> None:
    with GpuGroup(1) as reader, GpuGroup(2) as source:
        (memory,) = reader.agents.memories
        reader.connect(source)
        for number in (1, 2):
            reader.check_read(source, REMOTE, LOCAL)
            assert reader.num_copied == number * 2 * len(REMOTE)
            assert len(memory.mapped) == 2
            memory.owner_has_ended = True
            until(lambda: not memory.mapped)
            memory.owner_has_ended = False
            reader.restore()


def test_memory_that_is_being_copied_stays_mapped() -> None:
    with GpuGroup(1) as reader, GpuGroup(1) as source:
        (memory,) = reader.agents.memories
        reader.connect(source)
        memory.ends = False
        reader.post(source, REMOTE, LOCAL, "lease")
        until(lambda: memory.num_pieces > 0)
        memory.owner_has_ended = True
        num_looks = memory.num_looks
        until(lambda: memory.num_looks > num_looks + 20)
        assert memory.mapped
        memory.ends = True
        assert reader.results()[0].outcome == "done"
        until(lambda: not memory.mapped)


def test_a_cancelled_read_ends_when_its_copy_has_ended() -> None:
    with GpuGroup(1) as reader, GpuGroup(1) as source:
        (memory,), (rank,) = reader.agents.memories, reader.ranks
        reader.connect(source)
        memory.ends = False
        reader.post(source, REMOTE, LOCAL, "lease")
        until(lambda: memory.num_pieces > 0)
        rank.transfer.submit(CancelRead(1))
        # Blocks that a read may still write to are refused to another one.
        reader.post(source, REMOTE, LOCAL, "other")
        assert (refused := rank.result()).outcome == "failed"
        assert "under another read" in refused.error
        assert memory.mapped
        memory.ends = True
        assert rank.result().outcome == "cancelled"
