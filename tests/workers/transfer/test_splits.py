"""Blocks read between engines of any split, with real agents: exact, fenced, and told once per rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec
import pytest

from baton_serve.core.protocol.steps import Sent
from baton_serve.workers.rank_protocol.spec import TransferOptions
from tests.kits.transfer.groups import CELL_BYTES, FIRST_FREE, NUM_HEADS, NUM_LAYERS, Group, Ledger
from tests.kits.transfer.pair import Made

SPLITS = [(1, 1), (2, 1), (3, 1), (4, 1), (1, 2), (2, 2)]
REMOTE, LOCAL = [5, 0, 3], [FIRST_FREE + 4, FIRST_FREE, FIRST_FREE + 7]
BLOCK_BYTES = NUM_HEADS * NUM_LAYERS * CELL_BYTES
Groups = Callable[[tuple[int, int]], Group]


@pytest.fixture(scope="module")
def groups() -> Iterator[Groups]:
    """Engines that are left as they were found; each is started once."""
    started: dict[tuple[int, int], Group] = {}

    def group(split: tuple[int, int]) -> Group:
        if split not in started:
            started[split] = Group(*split)
        return started[split]

    yield group
    for one in started.values():
        with one:
            pass


@pytest.mark.parametrize("here", SPLITS, ids=lambda split: f"{split[0]}x{split[1]}-reads")
@pytest.mark.parametrize("there", SPLITS, ids=lambda split: f"{split[0]}x{split[1]}")
def test_every_byte_arrives_and_every_rank_is_told_once(
    groups: Groups, here: tuple[int, int], there: tuple[int, int]
) -> None:
    reader, source = groups(here), groups(there)
    reader.connect(source)
    for lease_id in ("first", "second"):
        name = reader.post(source, REMOTE, LOCAL, lease_id)
        results = reader.results()
        assert [(result.outcome, result.stale_blocks) for result in results] == [("done", [])] * len(results)
        assert sum(result.num_bytes for result in results) == len(REMOTE) * BLOCK_BYTES
        assert reader.holds(source, REMOTE, LOCAL)
        # Had a rank been told twice, then the next one here, or in the next test, would not be this.
        assert source.sent() == [Sent(lease_id, name)] * len(source.ranks)
        reader.restore()


def test_runs_of_heads_are_one_piece_only_where_both_hold_the_same_layers(groups: Groups) -> None:
    counts = {}
    for there in SPLITS:
        reader = groups((1, 1))
        reader.connect(groups(there))
        reader.post(groups(there), REMOTE, LOCAL, "count")
        (counts[there],) = (result.num_descriptors // len(REMOTE) for result in reader.results())
        groups(there).sent()
        reader.restore()
    assert counts == {(1, 1): 1, (2, 1): 2, (3, 1): 3, (4, 1): 4, (1, 2): 2 * NUM_HEADS, (2, 2): 2 * NUM_HEADS}


@pytest.mark.parametrize("piece_bytes", [1, 2 * BLOCK_BYTES // 3])
def test_in_small_pieces_it_is_the_same(groups: Groups, piece_bytes: int) -> None:
    source = groups((2, 2))
    with Group(options=TransferOptions(piece_bytes=piece_bytes, window=1)) as reader:
        reader.connect(source)
        reader.check_read(source, REMOTE, LOCAL, "small")
        assert {sent.lease_id for sent in source.sent()} == {"small"}


def test_a_lease_is_sent_when_all_readers_have_told(groups: Groups) -> None:
    reader, source = groups((4, 1)), groups((2, 1))
    reader.connect(source)
    slow = reader.ranks[0]
    early = f"{reader.engine_id}-{reader.num_reads + 1}"
    for rank in reader.ranks[1:]:
        rank.post(source.engine_id, [1], LOCAL[:1], source.promise, lease_id="early")
        rank.result()
    # Rank 1 there has heard of both of its readers, rank 0 of one of them.
    assert source.ranks[1].sent() == Sent("early", early)
    other = groups((1, 1))
    other.connect(source)
    late = other.post(source, [2], LOCAL[:1], "early")
    assert other.results()[0].outcome == "done"
    assert source.sent() == [Sent("early", late)] * 2, "another engine's read of the same lease counts by itself"
    slow.post(source.engine_id, [1], LOCAL[:1], source.promise, lease_id="early")
    assert slow.result().outcome == "done"
    assert source.ranks[0].sent() == Sent("early", early)
    reader.num_reads += 1
    for group in (reader, other):
        group.restore()


def test_what_one_rank_has_overwritten_is_stale_whatever_the_others_say() -> None:
    with Group() as reader, Group(2, 2) as source:
        reader.connect(source)
        overwritten: list[int] = []
        for rank, block in ((3, REMOTE[0]), (0, REMOTE[1]), (0, REMOTE[0])):
            source.ranks[rank].versions.store([(block, source.promise + 1)])
            overwritten.append(LOCAL[REMOTE.index(block)])
            reader.post(source, REMOTE, LOCAL, "stale")
            (result,) = reader.results()
            assert (result.outcome, result.stale_blocks) == ("stale", sorted(set(overwritten)))
            assert {sent.lease_id for sent in source.sent()} == {"stale"}
        reader.post(source, REMOTE[2:], LOCAL[2:], "fresh")
        assert reader.results()[0].outcome == "done"


def test_of_copies_one_is_read_and_all_are_told() -> None:
    with Group() as reader, Group(num_copies=2) as source:
        source.ranks[1].versions.store([(block, source.promise + 1) for block in REMOTE])
        reader.connect(source)
        name = reader.check_read(source, REMOTE, LOCAL, "copies")  # the other copy's versions are not looked at
        assert source.sent() == [Sent("copies", name)] * 2


def test_scratch_grows_with_the_widest_peer_and_all_is_given_back(groups: Groups) -> None:
    accounts = Made(Ledger)
    with Group(make_agent=accounts) as reader:
        (account,) = accounts.agents
        assert account.num_regions == 2, "the cache and the versions"
        num_tables = []
        for split in ((1, 1), (2, 2), (2, 1)):
            reader.connect(groups(split))
            reader.check_read(groups(split), REMOTE, LOCAL)
            groups(split).sent()
            num_tables.append(account.num_regions - 2)
        assert num_tables == [1, 4, 4]
        assert (len(account.remotes), account.num_lists_there) == (7, 14)
        reader.disconnect(groups((2, 2)))
        reader.connect(groups((1, 1)))
        assert (len(account.remotes), account.num_lists_there) == (3, 6)
    assert (account.remotes, account.num_lists_there, account.num_lists_here) == (set(), 0, 0)


def test_peers_of_one_split_share_the_lists_of_our_memory(groups: Groups) -> None:
    accounts = Made(Ledger)
    with Group(make_agent=accounts) as reader, Group(2, 1) as second:
        (account,) = accounts.agents
        reader.connect(groups((2, 1)))
        before = account.num_lists_here
        reader.connect(second)
        assert account.num_lists_here == before
        reader.disconnect(groups((2, 1)))
        reader.check_read(second, REMOTE, LOCAL)
        assert account.num_lists_here == before
        reader.disconnect(second)
    assert account.num_lists_here == 0


def test_a_connection_that_fails_half_way_leaves_nothing(groups: Groups) -> None:
    accounts = Made(Ledger)
    source = groups((2, 1))
    with Group(make_agent=accounts) as reader:
        (account,) = accounts.agents
        (rank,) = reader.ranks
        first, second = source.metadata
        for lie in (
            {"agent_metadata": b"garbage"},
            {"agent_name": first.agent_name},
            {"agent_metadata": first.agent_metadata},
            {"cache_address": second.cache_address + 2**40},
            {"version_address": second.version_address + 2**40},
        ):
            assert rank.connect(first, msgspec.structs.replace(second, **lie))
            assert (account.remotes, account.num_lists_there, account.num_lists_here) == (set(), 0, 0), lie
        reader.connect(source)
        reader.check_read(source, REMOTE, LOCAL, "true")
        assert {sent.lease_id for sent in source.sent()} == {"true"}
