"""The block pool: a stateful test against a plain model, and the rules one by one."""

from __future__ import annotations

from array import array
from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from baton_serve.workers.engine.blocks.block_hash import NO_PARENT, first_parent, hash_blocks
from baton_serve.workers.engine.blocks.block_pool import BlockPool
from baton_serve.workers.engine.blocks.lease_index import Grant
from baton_serve.workers.engine.errors import LedgerError, OutOfBlocksError
from tests.kits.engine.fake_rank import is_writable

SIZE = 4


def name(number: int) -> bytes:
    return hash_blocks(NO_PARENT, [number], 1)[0]


class PoolMachine(RuleBasedStateMachine):
    """Owners are lists of blocks; contents are small numbers so that duplicates are common."""

    @initialize(num_blocks=st.integers(1, 8))
    def start(self, num_blocks: int) -> None:
        self.pool = BlockPool(num_blocks, SIZE, version_base=100)
        self.owners: list[list[int]] = []
        self.leases: dict[str, list[int]] = {}
        #: How often each block was allocated: until now, and when it was put under each lease, ended or not.
        self.num_taken: Counter[int] = Counter()
        self.promises: dict[str, tuple[int, dict[int, int]]] = {}
        self.data: dict[int, int] = {}
        self.seen_versions: set[int] = set()
        self.number = 0

    def held(self) -> set[int]:
        return {block for blocks in [*self.owners, *self.leases.values()] for block in blocks}

    @rule(count=st.integers(0, 9))
    def allocate(self, count: int) -> None:
        available = self.pool.num_available
        assert available == self.pool.num_blocks - len(self.held())
        if count > available:
            with pytest.raises(OutOfBlocksError):
                self.pool.allocate(count)
            assert self.pool.num_available == available
            return
        blocks = self.pool.allocate(count)
        assert len(set(blocks)) == count
        assert not set(blocks) & self.held()
        self.num_taken.update(blocks)
        for block in blocks:
            assert self.pool.version_of(block) not in self.seen_versions
            assert is_writable(self.pool, block)
            self.seen_versions.add(self.pool.version_of(block))
            self.data.pop(block, None)
        if blocks:
            self.owners.append(blocks)

    @precondition(lambda self: self.owners)
    @rule(data=st.data(), content=st.integers(0, 3))
    def fill(self, data: st.DataObject, content: int) -> None:
        block = data.draw(st.sampled_from(data.draw(st.sampled_from(self.owners))))
        if is_writable(self.pool, block):
            self.data[block] = content
            self.pool.register(block, name(content))

    @rule(contents=st.lists(st.integers(0, 3), max_size=4, unique=True))
    def share(self, contents: list[int]) -> None:
        found = self.pool.lookup([name(content) for content in contents])
        assert [self.data[block] for block in found] == contents[: len(found)]
        available, idle = self.pool.num_available, self.pool.num_idle(found)
        self.pool.share(found)
        assert self.pool.num_available == available - idle
        assert not any(is_writable(self.pool, block) for block in found)
        if found:
            self.owners.append(found)

    @precondition(lambda self: self.owners)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        self.pool.free(self.owners.pop(data.draw(st.integers(0, len(self.owners) - 1))))

    @precondition(lambda self: self.owners)
    @rule(data=st.data())
    def lease(self, data: st.DataObject) -> None:
        blocks = self.owners.pop(data.draw(st.integers(0, len(self.owners) - 1)))
        self.number += 1
        lease_id = f"lease-{self.number}"
        promise = self.pool.lease(lease_id, Grant(blocks=blocks))
        self.leases[lease_id] = blocks
        self.promises[lease_id] = promise, {block: self.num_taken[block] for block in blocks}
        with pytest.raises(LedgerError):
            self.pool.lease(lease_id, Grant(blocks=blocks))

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def end_lease(self, data: st.DataObject) -> None:
        lease_id = data.draw(st.sampled_from(sorted(self.leases)))
        del self.leases[lease_id]
        assert self.pool.end_lease(lease_id)
        assert not self.pool.end_lease(lease_id)

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def take_over(self, data: st.DataObject) -> None:
        lease_id = data.draw(st.sampled_from(sorted(self.leases)))
        blocks = self.leases.pop(lease_id)
        assert self.pool.leases.get(lease_id) == Grant(blocks=blocks)
        assert self.pool.take_over(lease_id) == blocks
        assert self.pool.leases.get(lease_id) is None
        with pytest.raises(LedgerError):
            self.pool.take_over(lease_id)
        self.owners.append(blocks)

    @invariant()
    def balances(self) -> None:
        if not hasattr(self, "pool"):
            return
        self.pool.check(Counter(block for blocks in self.owners for block in blocks))
        stats = self.pool.stats()
        leased = {block for blocks in self.leases.values() for block in blocks}
        pinned = {block for blocks in self.owners for block in blocks} - leased
        assert (stats.leased, stats.pinned, stats.leases) == (len(leased), len(pinned), len(self.leases))

    @invariant()
    def versions_are_above_the_promise_once_their_blocks_are_taken_again_and_not_before(self) -> None:
        for lease_id, (promise, num_taken) in getattr(self, "promises", {}).items():
            for block, number in num_taken.items():
                is_stale = self.pool.version_of(block) > promise
                assert is_stale == (self.num_taken[block] > number)
                assert not is_stale or lease_id not in self.leases


PoolMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestPoolMachine = PoolMachine.TestCase


@pytest.fixture
def pool() -> BlockPool:
    return BlockPool(4, SIZE, version_base=2**63 - 1)


def test_versions_change_when_blocks_are_taken_not_when_given_back(pool: BlockPool) -> None:
    blocks = pool.allocate(4)
    versions = [pool.version_of(block) for block in blocks]
    assert versions == [2**63, 2**63 + 1, 2**63 + 2, 2**63 + 3]
    pool.free(blocks)
    assert [pool.version_of(block) for block in blocks] == versions
    assert [pool.version_of(block) for block in pool.allocate(4)] == [version + 4 for version in versions]


def test_free_blocks_are_taken_before_cached_ones_and_the_oldest_cached_first(pool: BlockPool) -> None:
    first, second, third, fourth = pool.allocate(4)
    for block in (first, second, third):
        pool.register(block, name(block))
    pool.free([second])
    pool.free([first, third])  # the end of a sequence goes before its beginning
    pool.free([fourth])
    assert [pool.allocate(1)[0] for _ in range(4)] == [fourth, second, third, first]


def test_using_a_cached_block_makes_it_recent(pool: BlockPool) -> None:
    first, second, *others = pool.allocate(4)
    pool.register(first, name(1))
    pool.register(second, name(2))
    pool.free([first])
    pool.free([second])
    assert pool.lookup([name(1)]) == [first]
    pool.share([first])
    pool.free([first])
    assert pool.allocate(2) == [second, first]
    pool.free(others)


def test_a_second_block_of_one_content_stays_unnamed_and_goes_free(pool: BlockPool) -> None:
    first, second = pool.allocate(2)
    pool.register(first, name(1))
    pool.register(second, name(1))
    assert pool.lookup([name(1)]) == [first]
    pool.free([first, second])
    assert (pool.stats().cached, pool.stats().free) == (1, 3)
    pool.check({})


def test_lookup_stops_at_the_first_gap(pool: BlockPool) -> None:
    first, second = pool.allocate(2)
    pool.register(first, name(1))
    pool.register(second, name(3))
    assert pool.lookup([name(1), name(2), name(3)]) == [first]


def test_a_leased_block_may_be_shared_and_outlives_its_lease(pool: BlockPool) -> None:
    (block,) = pool.allocate(1)
    pool.register(block, name(1))
    pool.lease("a", Grant(blocks=[block]))
    assert pool.num_idle([block]) == 0
    pool.share([block])
    assert pool.stats().leased == 1
    pool.end_lease("a")
    assert (pool.stats().leased, pool.stats().pinned) == (0, 1)
    pool.free([block])
    assert pool.stats().cached == 1


@pytest.mark.parametrize(
    "misuse",
    [
        lambda pool, block: pool.free([block, block]),
        lambda pool, block: pool.free([block, block + 1]),
        lambda pool, block: pool.share([block]),
        lambda pool, block: pool.lease("a", Grant(blocks=[block + 1])),
        lambda pool, block: pool.register(block + 1, name(1)),
    ],
)
def test_misuse_raises_and_changes_nothing(pool: BlockPool, misuse) -> None:
    (block,) = pool.allocate(1)
    before = pool.stats()
    with pytest.raises(LedgerError):
        misuse(pool, block)
    assert pool.stats() == before
    pool.check({block: 1})


def test_a_named_block_cannot_be_renamed(pool: BlockPool) -> None:
    (block,) = pool.allocate(1)
    pool.register(block, name(1))
    with pytest.raises(LedgerError):
        pool.register(block, name(2))


def test_check_tells_all_counts(pool: BlockPool) -> None:
    pool.allocate(1)
    with pytest.raises(LedgerError, match=r"4 blocks: 3 free \+ 0 cached \+ 1 pinned \+ 0 leased by 0 leases"):
        pool.check({})


def test_content_names_depend_on_everything_before() -> None:
    (left, after_left), (right, after_right) = (hash_blocks(NO_PARENT, ids, 2) for ids in ([1, 2, 3, 3], [2, 1, 3, 3]))
    assert left != right and after_left != after_right
    assert [after_left] == hash_blocks(left, [3, 3], 2)
    assert hash_blocks(left, [], 2) == []
    assert len(left) == 16


def test_salts_share_no_name() -> None:
    """Not even a salt that spells the tokens of a block."""
    tokens = [97, 98]
    spelled = array("q", tokens).tobytes().decode()
    parents = [first_parent(salt) for salt in ("", "a", "b", spelled)]
    named = [name for parent in parents for name in hash_blocks(parent, [97, 98, 97, 98], 2)]
    assert len({*named, *parents}) == len(named) + len(parents)
    assert parents[0] == NO_PARENT
