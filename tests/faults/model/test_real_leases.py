"""Fence, block pool and leases together, the real ones: random histories of one P, its store, a router and readers.

What is real: the block pool, the version table, the lease holder, the scripts in Redis, the read machine, the fence's
comparison, the count of notifications. What stands in: the blocks' bytes are one number each, and time is moved.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from baton_serve.core.leases.holder import LeaseHolder, Work
from baton_serve.core.leases.store import LeaseState
from baton_serve.workers.engine.blocks.block_hash import NO_PARENT, hash_blocks
from baton_serve.workers.engine.blocks.block_pool import BlockPool
from baton_serve.workers.engine.blocks.lease_index import Grant
from baton_serve.workers.sharding.gather import Gather
from baton_serve.workers.transfer.reads.fence import stale_positions
from baton_serve.workers.transfer.reads.read_machine import Post, PostKind, ReadMachine, ReadState
from baton_serve.workers.transfer.versions import VersionTable
from tests.kits.leases.harness import Clock, RedisHarness

ENGINE = "e0"
NUM_BLOCKS, BLOCK_SIZE = 4, 4
#: Of no multiple of a pause is the end of a lease, of the margin or of the outcomes' memory within SLACK_MS.
DURATION_MS, PAUSE_MS, GRACE_MS, SLACK_MS = 72_000, 48_000, 120_000, 6_000


@dataclass
class Prefill:
    """A sequence on P: its blocks, what they shall hold, and which of them are still to be written."""

    blocks: list[int]
    contents: list[int]
    unwritten: list[int]


@dataclass
class Promise:
    """What P's answer says of a lease, and until when it has to be kept."""

    blocks: list[int]
    promise: int
    contents: list[int]
    #: By the model's clock, as far as the store has confirmed it; 0: not yet, or not any more.
    kept_until_ms: int = 0


@dataclass
class Reader:
    """One rank of a D that reads a promise."""

    lease_id: str
    name: str
    rank: int
    num_ranks: int
    promise: Promise
    machine: ReadMachine
    data: list[int]
    in_flight: list[Post] = field(default_factory=list)
    stale: list[int] = field(default_factory=list)


class FenceMachine(RuleBasedStateMachine):
    """Rules are what P, its keeper, the router and D do, in any order."""

    url = ""

    def __init__(self) -> None:
        super().__init__()
        self.redis = RedisHarness(self.url)
        self.redis.lose_everything()
        self.clock = Clock()
        self.pool = BlockPool(NUM_BLOCKS, BLOCK_SIZE, version_base=2**63 - 1)
        self.table = VersionTable(NUM_BLOCKS)
        self.memory = [-1] * NUM_BLOCKS
        self.holder = LeaseHolder(duration_ms=DURATION_MS, redis_grace_ms=GRACE_MS, now_ms=self.clock())
        self.told = Gather(max_open=1_000)
        self.prefills: list[Prefill] = []
        self.promises: dict[str, Promise] = {}
        self.readers: list[Reader] = []
        self.number = 0

    def teardown(self) -> None:
        self.redis.close()

    # --- P

    @rule(contents=st.lists(st.integers(0, 9), min_size=1, max_size=3, unique=True), is_quick=st.booleans())
    def take_blocks(self, contents: list[int], is_quick: bool) -> None:
        """``SchedulerState.place``, then the ranks store the versions before they write. Quick: all up to the
        hand-off.
        """
        found = self.pool.lookup([hash_blocks(NO_PARENT, [content], 1)[0] for content in contents])
        num_fresh = len(contents) - len(found)
        if self.pool.num_available - self.pool.num_idle(found) < num_fresh:
            return
        self.pool.share(found)
        fresh = self.pool.allocate(num_fresh)
        self.table.store((block, self.pool.version_of(block)) for block in fresh)
        one = Prefill(found + fresh, contents, fresh)
        self.prefills.append(one)
        while is_quick and one.unwritten:
            self.write(one)
        if is_quick:
            self.pin(one)

    @precondition(lambda self: any(one.unwritten for one in self.prefills))
    @rule(data=st.data())
    def write_block(self, data: st.DataObject) -> None:
        self.write(data.draw(st.sampled_from([one for one in self.prefills if one.unwritten])))

    def write(self, one: Prefill) -> None:
        block = one.unwritten.pop(0)
        content = one.contents[one.blocks.index(block)]
        self.memory[block] = content
        self.pool.register(block, hash_blocks(NO_PARENT, [content], 1)[0])

    @precondition(lambda self: any(not one.unwritten for one in self.prefills))
    @rule(data=st.data())
    def hand_off(self, data: st.DataObject) -> None:
        self.pin(data.draw(st.sampled_from([one for one in self.prefills if not one.unwritten])))

    def pin(self, one: Prefill) -> None:
        self.prefills.remove(one)
        self.number += 1
        lease_id = f"lease-{self.number}"
        promise = self.pool.lease(lease_id, Grant(blocks=one.blocks))
        self.promises[lease_id] = Promise(one.blocks, promise, one.contents)
        self.holder.grant(lease_id, self.clock())

    @precondition(lambda self: self.prefills)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        self.pool.free(self.prefills.pop(data.draw(st.integers(0, len(self.prefills) - 1))).blocks)

    @precondition(lambda self: self.holder.pinned())
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        lease_id = data.draw(st.sampled_from(self.holder.pinned()))
        self.holder.drop(lease_id, self.clock())
        self.end(lease_id)

    @rule(is_silent=st.booleans(), is_overtaken=st.booleans())
    def keep(self, is_silent: bool, is_overtaken: bool) -> None:
        """One turn of ``LeaseKeeper``. Silent: nothing reaches the store. Overtaken: only its answers get lost."""
        self.holder.tell_now()  # time moves in pauses that are longer than any delay
        work = self.holder.take_work(self.clock())
        if not work:
            return
        if not is_silent:
            self.ask(work, is_overtaken=is_overtaken)
        if is_silent or is_overtaken:
            for ended in self.holder.failed(self.clock()):
                self.end(ended.lease_id)

    def ask(self, work: Work, *, is_overtaken: bool) -> None:
        store = self.redis.store
        if work.grant:
            refused = store.grant(ENGINE, work.grant, DURATION_MS)
            if not is_overtaken:
                self.holder.granted(work.grant, self.clock())
                if refused:
                    self.holder.sync_soon()
        if work.release:
            store.release(ENGINE, work.release)
        answers = store.reap(ENGINE, work.reap, work.done)
        if is_overtaken:
            return
        for ended in self.holder.answered(work, answers, self.clock()):
            kept_until_ms = self.promises[ended.lease_id].kept_until_ms
            assert kept_until_ms <= self.clock(), f"{ended} was to be kept for {kept_until_ms - self.clock()} ms more"
            self.end(ended.lease_id)

    def end(self, lease_id: str) -> None:
        """``on_end``: the blocks are unpinned here and nowhere else."""
        assert self.pool.end_lease(lease_id)
        self.promises[lease_id].kept_until_ms = 0

    # --- the router, the store, time

    @precondition(lambda self: self.promises)
    @rule(data=st.data())
    def renew(self, data: st.DataObject) -> None:
        lease_id = data.draw(st.sampled_from(sorted(self.promises)))
        (status,) = self.redis.store.renew(ENGINE, [lease_id], DURATION_MS)
        if status.state is LeaseState.HELD and lease_id in self.holder.pinned():
            self.promises[lease_id].kept_until_ms = self.clock() + status.remaining_ms - SLACK_MS

    @precondition(lambda self: self.promises)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        lease_id = data.draw(st.sampled_from(sorted(self.promises)))
        self.redis.store.release(ENGINE, [lease_id])
        self.holder.sync_soon()
        self.promises[lease_id].kept_until_ms = 0

    @rule(pauses=st.integers(1, 3))
    def wait(self, pauses: int) -> None:
        self.clock.advance(pauses * PAUSE_MS)
        self.redis.advance(pauses * PAUSE_MS)

    @rule()
    def lose_everything(self) -> None:
        self.redis.lose_everything()
        for promise in self.promises.values():
            promise.kept_until_ms = 0

    # --- D

    @precondition(lambda self: self.promises and len(self.readers) < 6)
    @rule(data=st.data(), num_ranks=st.integers(1, 2))
    def begin_read(self, data: st.DataObject, num_ranks: int) -> None:
        """Also of a lease that has ended: the router may not know yet."""
        self.open_read(data.draw(st.sampled_from(list(self.promises)[-3:])), num_ranks)

    def open_read(self, lease_id: str, num_ranks: int) -> None:
        promise = self.promises[lease_id]
        self.number += 1
        for rank in range(num_ranks):
            machine = ReadMachine(len(promise.blocks), num_tables=1, window=2)
            empty = [-2] * len(promise.blocks)
            self.readers.append(Reader(lease_id, f"d-{self.number}", rank, num_ranks, promise, machine, empty))

    @precondition(lambda self: self.readers)
    @rule(data=st.data(), num_steps=st.integers(1, 8))
    def go_on_reading(self, data: st.DataObject, num_steps: int) -> None:
        """Post what can be posted, or let a piece that is in flight arrive: it is what the memory holds then."""
        reader = data.draw(st.sampled_from(self.readers))
        for _ in range(num_steps):
            if reader.machine.ended:
                break
            self.step(reader, data)
        if reader.machine.ended:
            self.readers.remove(reader)
            self.judge(reader)

    def step(self, reader: Reader, data: st.DataObject) -> None:
        if not reader.in_flight or data.draw(st.booleans()):
            post = reader.machine.next_post()
            if post is not None:
                reader.in_flight.append(post)
                return
        if reader.in_flight:
            self.land(reader, reader.in_flight.pop(data.draw(st.integers(0, len(reader.in_flight) - 1))))

    def land(self, reader: Reader, post: Post) -> None:
        promise = reader.promise
        if post.kind is PostKind.DATA:
            reader.data[post.number] = self.memory[promise.blocks[post.number]]
            reader.machine.arrived()
            return
        reader.stale = self.compare(promise)
        reader.machine.compared(kept=not reader.stale)

    def compare(self, promise: Promise) -> list[int]:
        """The fence: which of the promised blocks have a larger version by now."""
        return stale_positions(promise.promise, self.table.array[np.array(promise.blocks)])

    def judge(self, reader: Reader) -> None:
        promise, state = reader.promise, reader.machine.state
        if state is ReadState.DONE:
            assert reader.data == promise.contents, "accepted, but not what was promised"
        elif state is ReadState.STALE:
            kept = min(reader.stale)
            assert reader.data[:kept] == promise.contents[:kept]
            assert reader.lease_id not in self.pool.leases, "a read was refused although its lease was held"
        if not reader.machine.tells_peer:
            return
        key = (reader.lease_id, reader.name)
        if self.told.report(key, reader.rank, reader.num_ranks) and reader.lease_id in self.holder.pinned():
            self.holder.done(reader.lease_id, self.clock())
            self.end(reader.lease_id)

    @precondition(lambda self: self.readers)
    @rule(data=st.data())
    def cancel_read(self, data: st.DataObject) -> None:
        reader = data.draw(st.sampled_from(self.readers))
        reader.machine.cancel()
        if reader.machine.ended:
            self.readers.remove(reader)
            assert reader.machine.state is ReadState.CANCELLED

    # --- always

    @invariant()
    def the_ledger_balances(self) -> None:
        self.pool.check(Counter(block for one in self.prefills for block in one.blocks))

    @invariant()
    def pool_and_holder_know_the_same_leases(self) -> None:
        assert len(self.pool.leases) == len(self.holder)
        assert all(lease_id in self.pool.leases for lease_id in self.holder.pinned())

    @invariant()
    def what_is_leased_is_as_promised(self) -> None:
        for lease_id in self.holder.pinned():
            promise = self.promises[lease_id]
            assert not self.compare(promise)
            assert [self.memory[block] for block in promise.blocks] == promise.contents


def test_an_accepted_read_holds_what_was_promised(redis_url: str) -> None:
    machine = type("Machine", (FenceMachine,), {"url": redis_url})
    run_state_machine_as_test(machine, settings=settings(max_examples=50, stateful_step_count=50))


class Careless(FenceMachine):
    def compare(self, promise: Promise) -> list[int]:
        return []


@pytest.mark.parametrize("kind", [FenceMachine, Careless])
def test_blocks_that_were_overwritten_are_accepted_only_without_the_fence(redis_url: str, kind) -> None:
    machine = type("Machine", (kind,), {"url": redis_url})()
    machine.take_blocks(contents=[1, 2, 3], is_quick=True)
    machine.holder.drop("lease-1", machine.clock())
    machine.end("lease-1")
    machine.take_blocks(contents=[4, 5, 6], is_quick=True)
    machine.open_read("lease-1", num_ranks=1)
    (reader,) = machine.readers
    while not reader.machine.ended:
        post = reader.machine.next_post()
        assert post is not None
        machine.land(reader, post)
    machine.teardown()
    if kind is Careless:
        with pytest.raises(AssertionError, match="accepted"):
            machine.judge(reader)
        return
    machine.judge(reader)
    assert reader.machine.state is ReadState.STALE
