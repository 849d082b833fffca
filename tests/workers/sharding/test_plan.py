"""Whatever the split on either side, every byte is read once, in as few pieces as there can be."""

from __future__ import annotations

import math
from collections import Counter

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baton_serve.core.protocol.handshake import RankMetadata, Shard
from baton_serve.workers.limits import MAX_AGENT_METADATA_BYTES, MAX_AGENT_NAME_CHARS, MAX_BLOCKS, MAX_PIECES, MAX_RANKS
from baton_serve.workers.rank_protocol.transfer_errors import PlanError
from baton_serve.workers.sharding.plan import RankSource, check_pair, plan
from tests.kits.transfer.shards import ONE_RANK, Model, block_of, engine, model, shards


def fewest_runs(local: Shard, remote: Shard, whole: Model) -> int:
    """Stretches of the local block that lie together in the remote one as well, counted byte by byte."""
    place = np.full(whole.size, -1)
    there = block_of(remote, whole)
    place[there] = np.arange(len(there))
    places = place[block_of(local, whole)]
    before = np.concatenate([[-1], places[:-1]])
    return int(np.count_nonzero((places >= 0) & ((before < 0) | (places != before + 1))))


def check_reader(local: RankMetadata, sources: list[RankSource], whole: Model) -> None:
    """What ``local`` reads is all of its own block, each byte once, out of blocks that have it."""
    wanted = block_of(local.shard, whole)
    found, num_writes = np.full(len(wanted), -1), np.zeros(len(wanted), dtype=int)
    for source in sources:
        there = block_of(source.remote.shard, whole)
        if source.runs:
            assert len(source.runs) == fewest_runs(local.shard, source.remote.shard, whole)
        for run in source.runs:
            assert run.num_bytes > 0
            assert run.remote_offset + run.num_bytes <= len(there)
            here = slice(run.local_offset, run.local_offset + run.num_bytes)
            found[here] = there[run.remote_offset : run.remote_offset + run.num_bytes]
            num_writes[here] += 1
    assert (num_writes == 1).all()
    assert (found == wanted).all()


def check_engines(locals_: list[RankMetadata], remotes: list[RankMetadata], whole: Model) -> None:
    check_pair(locals_, remotes)
    told: Counter[int] = Counter()
    promised: dict[int, set[int]] = {}
    for local in locals_:
        sources = plan(local, remotes)
        check_reader(local, sources, whole)
        told.update(source.remote.rank for source in sources)
        for source in sources:
            promised.setdefault(source.remote.rank, set()).add(source.num_readers)
    assert set(told) == {remote.rank for remote in remotes}, "every rank there hears of it"
    assert promised == {rank: {count} for rank, count in told.items()}


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_sizes_in_any_order_with_copies(data: st.DataObject) -> None:
    def number(most: int) -> int:
        return data.draw(st.integers(1, most))

    here, there = (number(7), number(3)), (number(7), number(3))
    num_heads, num_layers = math.lcm(here[0], there[0]) * number(3), math.lcm(here[1], there[1]) * number(3)
    cell_bytes, num_copies = number(3), number(3)
    parts_here = data.draw(st.permutations(shards(num_heads, num_layers, *here)))
    parts_there = data.draw(st.permutations(shards(num_heads, num_layers, *there) * num_copies))
    remotes = data.draw(st.permutations(engine(parts_there, cell_bytes)))
    check_engines(engine(parts_here, cell_bytes), remotes, model(num_heads, num_layers, cell_bytes))


@pytest.mark.parametrize(("num_readers", "num_copies"), [(1, 3), (2, 4), (4, 2), (3, 2), (2, 3)])
def test_copies_share_the_load(num_readers: int, num_copies: int) -> None:
    readers = engine(shards(12, 2, num_readers, 1))
    copies = engine(shards(12, 2, 1, 1) * num_copies)
    reads = Counter(source.remote.rank for reader in readers for source in plan(reader, copies) if source.runs)
    assert reads.total() == num_readers
    assert max(reads.values()) == -(-num_readers // num_copies)


def test_equal_shards_are_one_run() -> None:
    (source,) = plan(ONE_RANK, [ONE_RANK])
    assert source.remote == ONE_RANK
    assert [msgspec.structs.astuple(run) for run in source.runs] == [(0, 0, 64)]
    assert source.num_readers == 1


def test_six_ranks_read_four() -> None:
    """Neither divides the other: two of three ranks here straddle two there."""
    remotes = engine(shards(12, 2, 4, 1))
    plans = [plan(local, remotes) for local in engine(shards(12, 2, 6, 1))]
    assert [[source.remote.rank for source in sources] for sources in plans] == [[0], [0, 1], [1], [2], [2, 3], [3]]
    assert {source.num_readers for sources in plans for source in sources} == {2}


def uneven_heads() -> list[Shard]:
    return [
        Shard(first_layer=0, last_layer=2, first_head=0, last_head=5),
        Shard(first_layer=0, last_layer=2, first_head=5, last_head=12),
    ]


def uneven_layers() -> list[Shard]:
    first, second = shards(12, 4, 1, 2)
    return [msgspec.structs.replace(first, last_layer=1), msgspec.structs.replace(second, first_layer=1)]


@pytest.mark.parametrize(
    ("parts", "problem"),
    [
        (uneven_heads(), "heads are not divided evenly"),
        (uneven_layers(), "layers are not divided evenly"),
        (shards(12, 2, 4, 1)[:3] + shards(16, 2, 4, 1)[3:], "heads are not divided evenly"),
        (shards(12, 2, 1, 1) + shards(12, 2, 2, 1), "heads are not divided evenly"),
        ([*shards(12, 2, 2, 2)[:3], shards(12, 2, 2, 2)[0]], "held by no rank"),
        ([*shards(12, 2, 2, 1), shards(12, 2, 2, 1)[0]], "held by more ranks than others"),
        (shards(16, 2, 2, 1), "differ in size"),
        (shards(12, 4, 1, 2), "differ in size"),
    ],
)
def test_uneven_shards_are_refused_and_both_sides_named(parts: list[Shard], problem: str) -> None:
    here, there = engine(shards(12, 2, 2, 1)), engine(parts)
    with pytest.raises(PlanError, match=problem) as caught:
        check_pair(here, there)
    assert "tp 2 x pp 1 (heads 0-6 6-12, layers 0-2) here, tp" in str(caught.value)
    assert f"-{max(part.last_head for part in parts)}, layers 0-" in str(caught.value)
    with pytest.raises(PlanError, match=r"rank 0 of 2 .* here, .* there"):
        plan(here[0], there)


def test_our_own_side_has_to_be_even_too() -> None:
    for parts, problem in ((uneven_heads(), "evenly"), (shards(12, 2, 1, 1) * 2, "hold the same shard")):
        with pytest.raises(PlanError, match=problem):
            check_pair(engine(parts), engine(shards(12, 2, 1, 1)))
    lonely = msgspec.structs.replace(engine(shards(12, 2, 2, 1))[0], num_ranks=3)
    with pytest.raises(PlanError, match="differ in size"):
        plan(lonely, engine(shards(12, 2, 1, 1)))
    with pytest.raises(PlanError, match="heads are not divided evenly: rank 1 of 2"):
        plan(engine(uneven_heads())[1], engine(shards(12, 2, 1, 1)))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"num_ranks": 2}, "not all ranks of one engine"),
        ({"num_ranks": MAX_RANKS + 1}, "impossible"),
        ({"rank": 1}, "impossible"),
        ({"rank": -1}, "impossible"),
        ({"block_bytes": 128}, "has 16 bytes here, 32 there"),
        ({"block_bytes": 66}, "66 bytes is not a number of heads and layers"),
        ({"block_bytes": 0}, "impossible"),
        ({"num_blocks": 0}, "impossible"),
        ({"num_blocks": MAX_BLOCKS + 1}, f"at most {MAX_BLOCKS}"),
        ({"agent_name": ""}, "name is empty"),
        ({"agent_name": "a" * (MAX_AGENT_NAME_CHARS + 1)}, "too long"),
        ({"agent_metadata": bytes(MAX_AGENT_METADATA_BYTES + 1)}, "too long"),
        ({"cache_address": 2**64 - 64}, "impossible"),
        ({"version_address": 0}, "impossible"),
        ({"cache_memory_type": "BLOCK"}, "unknown kind"),
        ({"cache_device_id": -1}, "unknown kind"),
        ({"shard": Shard(first_layer=0, last_layer=2, first_head=2, last_head=2)}, "impossible part"),
        ({"shard": Shard(first_layer=-1, last_layer=2, first_head=0, last_head=2)}, "impossible part"),
    ],
)
def test_what_cannot_be_is_refused_by_name(change: dict[str, object], problem: str) -> None:
    strange = msgspec.structs.replace(ONE_RANK, **change)
    with pytest.raises(PlanError, match=problem):
        plan(ONE_RANK, [strange])
    with pytest.raises(PlanError, match=problem):
        check_pair([ONE_RANK], [strange])


@pytest.mark.parametrize("change", [{"engine_id": "f"}, {"num_blocks": 5}, {"rank": 0}])
def test_ranks_of_two_engines_are_not_one(change: dict[str, object]) -> None:
    first, second = engine(shards(12, 2, 2, 1))
    with pytest.raises(PlanError, match="one engine"):
        plan(ONE_RANK, [first, msgspec.structs.replace(second, **change)])


def test_an_engine_has_ranks() -> None:
    with pytest.raises(PlanError, match="without ranks"):
        check_pair([ONE_RANK], [])


@pytest.mark.parametrize("change", [{}, {"agent_name": "a" * 2**20}, {"num_blocks": 2**63}])
def test_what_is_said_of_a_peer_is_short(change: dict[str, object]) -> None:
    strange = msgspec.structs.replace(ONE_RANK, **{"cache_memory_type": "x" * 2**20, **change})
    with pytest.raises(PlanError) as caught:
        check_pair([ONE_RANK], [strange])
    assert len(str(caught.value)) < 200


def test_a_reader_prepares_a_bounded_number_of_pieces() -> None:
    """Half of the layers is a run for each head, and there are two ranks to read them from."""
    parts = shards(16, 2, 1, 2)
    most = MAX_PIECES // (2 * 16)
    (here,) = engine(shards(16, 2, 1, 1), num_blocks=most)
    assert [len(source.runs) for source in plan(here, engine(parts, num_blocks=most))] == [16, 16]
    with pytest.raises(PlanError, match="more than 16777216 pieces"):
        plan(here, engine(parts, num_blocks=most + 1))
