"""One rank checks the words of another, with NIXL."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import nixl._api as nixl
import pytest

from baton_serve.workers.vllm.agent import LateNotices, nixl_errors
from baton_serve.workers.vllm.fence.allocations import Allocations
from baton_serve.workers.vllm.fence.block_reads import ReadBlocks, read_blocks
from baton_serve.workers.vllm.fence.block_words import BlockWords
from baton_serve.workers.vllm.fence.promises import NO_WORD, Promise, Promises
from baton_serve.workers.vllm.fence.reads import FenceReads, Finding, Verdict
from baton_serve.workers.vllm.fence.tables import MEMORY, Table, Tables
from baton_serve.workers.vllm.fence.words import Words

NUM_SLOTS = 16
NUM_BLOCKS = 12
P = "P's engine"
PATIENCE_S = 30


@dataclass
class Rank:
    """One rank with an agent and registered tables."""

    agent: Any
    words: Words
    blocks: BlockWords

    @classmethod
    def start(cls, name: str, num_landings: int = 8) -> Rank:
        """A rank whose tables NIXL knows."""
        agent = nixl.nixl_agent(name)
        words, blocks = Words(NUM_SLOTS, num_landings), BlockWords(NUM_BLOCKS)
        for table in (words, blocks):
            agent.register_memory(agent.get_reg_descs([(table.address, table.array.nbytes, 0, "")], MEMORY))
        return cls(agent, words, blocks)

    def table(self, num_blocks: int = NUM_BLOCKS) -> Table:
        """What its handshake tells."""
        return Table(P, self.words.address, NUM_SLOTS, True, self.blocks.address, num_blocks)


@dataclass
class Pair:
    """D, and P with the promises of its scheduler."""

    p: Rank
    d: Rank
    promises: Promises
    tables: Tables
    reads: FenceReads
    allocations: Allocations

    def take(self, *block_ids: int) -> None:
        """A request of P's gets these blocks."""
        self.allocations.took(block_ids)
        self.p.blocks.apply(self.allocations.news())

    def end(self, *request_ids: str) -> None:
        """P keeps the blocks of these no more."""
        self.p.words.end(request_ids, self.p.blocks.last)

    def found(self, request_id: str, promise: Promise | None, blocks: ReadBlocks | None = None) -> Finding:
        """What D finds of a hand-off that it has read from P's first rank."""
        self.reads.expect(request_id, promise, blocks)
        self.reads.reads_from(request_id, P, 0)
        finding = self.finding(request_id)
        self.reads.forget(request_id)
        return finding

    def hand_off(self, request_id: str) -> Promise:
        """P has prefilled, and keeps the blocks."""
        self.promises.begin(request_id)
        self.p.words.apply(self.promises.news())
        promise = self.promises.promise(request_id)
        assert promise is not None
        return promise

    def finding(self, request_id: str) -> Finding:
        """D's, once it has one."""
        end_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < end_s:
            finding = self.reads.settle([request_id])[request_id]
            if finding is not None:
                return finding
        raise AssertionError("no verdict")


@pytest.fixture
def pair() -> Iterator[Pair]:
    p, d = Rank.start("p"), Rank.start("d", num_landings=2)
    name = d.agent.add_remote_agent(p.agent.get_agent_metadata())
    tables = Tables(d.agent)
    tables.meet(P, {0: (name, p.table())})
    reads = FenceReads(d.agent, d.words, d.blocks, tables, nixl_errors(d.agent))
    yield Pair(p, d, Promises(NUM_SLOTS), tables, reads, Allocations())
    reads.close()
    tables.forget(P)


def test_blocks_that_p_keeps_are_good(pair: Pair) -> None:
    for request_id in ("a", "b", "c"):
        assert pair.found(request_id, pair.hand_off(request_id)) == (Verdict.KEPT, None)
    assert pair.reads.settle(["a", "b", "c"]) == {}


def test_without_its_blocks_a_hand_off_that_ended_is_lost(pair: Pair) -> None:
    promise = pair.hand_off("a")
    pair.end("a")
    assert pair.found("a", promise) == (Verdict.ENDED, 0)


def test_blocks_that_nobody_has_taken_are_good_after_the_end(pair: Pair) -> None:
    pair.take(4, 5, 6)
    promise = pair.hand_off("a")
    pair.take(7)
    pair.end("a")
    pair.take(8)
    assert pair.found("a", promise, ReadBlocks([1, 2, 3], [4, 5, 6])) == (Verdict.LATE, None)


@pytest.mark.parametrize(("taken", "num_good"), [(4, 0), (5, 1), (6, 2)])
def test_blocks_from_the_first_one_that_was_taken_on_are_lost(pair: Pair, taken: int, num_good: int) -> None:
    pair.take(4, 5, 6)
    promise = pair.hand_off("a")
    pair.end("a")
    pair.take(taken)
    pair.take(6)
    assert pair.found("a", promise, ReadBlocks([3, 1, 2], [4, 5, 6])) == (Verdict.STALE, num_good)


def test_the_second_read_does_not_see_what_the_first_one_left(pair: Pair) -> None:
    pair.take(4, 5)
    first, second = pair.hand_off("a"), pair.hand_off("b")
    pair.end("a", "b")
    blocks = ReadBlocks([1, 2], [4, 5])
    assert pair.found("a", first, blocks) == (Verdict.LATE, None)
    pair.take(4)
    assert pair.found("b", second, blocks) == (Verdict.STALE, 0)
    assert pair.found("a", first, blocks) == (Verdict.STALE, 0)


def test_a_block_of_an_engine_that_has_just_started_is_nobodys(pair: Pair) -> None:
    promise = pair.hand_off("a")
    pair.end("a")
    assert pair.found("a", promise, ReadBlocks([1], [4])) == (Verdict.STALE, 0)


def test_once_the_slot_has_another_word_nothing_is_told(pair: Pair) -> None:
    pair.take(4)
    promise, blocks = pair.hand_off("a"), ReadBlocks([1], [4])
    pair.end("a")
    pair.promises.end("a")
    for number in range(NUM_SLOTS):  # one of them has the same slot
        pair.hand_off(str(number))
    assert pair.p.words.array[promise.slot, 0] not in (NO_WORD, promise.word)
    assert pair.found("again", promise, blocks) == (Verdict.ENDED, 0)
    pair.end(*map(str, range(NUM_SLOTS)))
    assert pair.found("again", promise, blocks) == (Verdict.ENDED, 0)


def test_a_word_that_was_guessed_does_not_show_what_blocks_hold(pair: Pair) -> None:
    pair.take(4)
    pair.hand_off("a")
    assert pair.found("b", Promise(0, 5), ReadBlocks([1], [4])) == (Verdict.ENDED, 0)
    pair.end("a")
    assert pair.found("b", Promise(0, 5), ReadBlocks([1], [4])) == (Verdict.ENDED, 0)


@pytest.mark.parametrize("remote", [[4, NUM_BLOCKS], [-1, 4], [4, 1 << 40]])
def test_numbers_that_no_block_has_are_not_read(pair: Pair, remote: list[int]) -> None:
    pair.take(4)
    promise = pair.hand_off("a")
    pair.end("a")
    assert pair.found("a", promise, ReadBlocks([1, 2], remote)) == (Verdict.STALE, 0)


def test_blocks_of_another_size_and_engines_without_their_words_are_lost_as_a_whole(pair: Pair) -> None:
    pair.take(4)
    promise, blocks = pair.hand_off("a"), ReadBlocks([1], [4])
    pair.end("a")
    pair.reads.expect("a", promise, blocks)
    pair.reads.reads_from("a", P, 0, by_block=False)
    assert pair.finding("a") == (Verdict.ENDED, 0)
    pair.tables.forget(P)
    pair.tables.meet(P, {0: ("p", pair.p.table(num_blocks=0))})
    assert pair.found("a", promise, blocks) == (Verdict.ENDED, 0)


def test_d_reads_the_last_blocks_of_p() -> None:
    assert read_blocks([1, 2], [7, 8, 9]) == ReadBlocks([1, 2], [8, 9])
    assert read_blocks([1], [7]) == ReadBlocks([1], [7])
    assert read_blocks([], [7]) is None
    assert read_blocks([1, 2], [7]) is None


@pytest.mark.parametrize("promise", [None, Promise(NUM_SLOTS, 5)])
def test_a_hand_off_without_a_promise_that_fits_is_not_used(pair: Pair, promise: Promise | None) -> None:
    assert pair.found("a", promise) == (Verdict.UNPROMISED, 0)


def test_a_promise_of_an_engine_that_was_forgotten_is_not_used(pair: Pair) -> None:
    pair.reads.expect("a", pair.hand_off("a"))
    pair.reads.reads_from("a", P, 0)
    pair.tables.forget(P)
    assert P not in pair.tables
    assert pair.finding("a") == (Verdict.UNPROMISED, 0)


def test_what_is_read_from_an_engine_without_a_table_has_no_verdict(pair: Pair) -> None:
    pair.reads.expect("a", None)
    assert pair.reads.settle(["a", "unknown"]) == {}


def test_more_checks_than_landings_take_turns(pair: Pair) -> None:
    pair.take(4)
    names = [str(number) for number in range(NUM_SLOTS)]
    for name in names:
        pair.reads.expect(name, pair.hand_off(name), ReadBlocks([int(name) % NUM_BLOCKS], [4]))
        pair.reads.reads_from(name, P, 0)
    pair.end(*names[::2])
    findings: dict[str, Finding | None] = {}
    end_s = time.monotonic() + PATIENCE_S
    while len(findings) < len(names) and time.monotonic() < end_s:
        found = pair.reads.settle([name for name in names if name not in findings])
        findings |= {name: finding for name, finding in found.items() if finding is not None}
    verdicts = {name: (Verdict.KEPT if int(name) % 2 else Verdict.LATE) for name in names}
    assert findings == {name: (verdict, None) for name, verdict in verdicts.items()}


def test_of_several_ranks_the_one_that_lost_most_counts(pair: Pair) -> None:
    other = Rank.start("p-1")
    name = pair.d.agent.add_remote_agent(other.agent.get_agent_metadata())
    pair.tables.forget(P)
    pair.tables.meet(P, {0: ("p", pair.p.table()), 1: (name, other.table())})
    ranks = (pair.p, other)

    def take(*block_ids: int, on: tuple[Rank, ...] = ranks) -> None:
        pair.allocations.took(block_ids)
        news = pair.allocations.news()
        for rank in on:
            rank.blocks.apply(news)

    def found(request_id: str, ended_on: tuple[Rank, ...], then: list[tuple[int, tuple[Rank, ...]]]) -> Finding:
        take(4, 5, 6)
        pair.promises.begin(request_id)
        told = pair.promises.news()
        for rank in ranks:
            rank.words.apply(told)
        for rank in ended_on:
            rank.words.end([request_id], rank.blocks.last)
        for block_id, on in then:
            take(block_id, on=on)
        pair.reads.expect(request_id, told.begun[request_id], ReadBlocks([1, 2, 3], [4, 5, 6]))
        for rank_number in (0, 1):
            pair.reads.reads_from(request_id, P, rank_number)
        return pair.finding(request_id)

    assert found("a", (), []) == (Verdict.KEPT, None)
    assert found("b", (other,), []) == (Verdict.LATE, None)
    assert found("c", (other,), [(5, (other,))]) == (Verdict.STALE, 1)
    assert found("d", ranks, [(6, (pair.p,)), (5, (other,))]) == (Verdict.STALE, 1)
    assert found("e", ranks, [(5, (pair.p,)), (6, (other,))]) == (Verdict.STALE, 1)
    assert found("f", ranks, []) == (Verdict.LATE, None)


def test_a_table_outside_registered_memory_is_refused(pair: Pair) -> None:
    with pytest.raises(nixl_errors(pair.d.agent)):
        pair.tables.meet("other", {0: ("p", Table("other", pair.p.words.address + (1 << 30), NUM_SLOTS))})
    assert "other" not in pair.tables


def test_a_held_notification_is_not_sent(pair: Pair) -> None:
    agent = LateNotices(pair.d.agent)
    own = agent.prep_xfer_dlist("NIXL_INIT_AGENT", agent.get_xfer_descs([(pair.d.words.address, 8, 0)], MEMORY))
    theirs = agent.prep_xfer_dlist("p", agent.get_xfer_descs([(pair.p.words.address, 8, 0)], MEMORY))
    with agent.held() as held:
        handle = agent.make_prepped_xfer("READ", own, [0], theirs, [0], notif_msg=b"first")
    assert held == [b"first"]
    agent.transfer(handle)
    last = agent.make_prepped_xfer("READ", own, [0], theirs, [0], notif_msg=b"second")
    agent.transfer(last)
    end_s = time.monotonic() + PATIENCE_S
    heard: list[bytes] = []
    while not heard and time.monotonic() < end_s:
        agent.check_xfer_state(handle), agent.check_xfer_state(last)
        heard = [message for messages in pair.p.agent.get_new_notifs().values() for message in messages]
    assert heard == [b"second"]
    for one in (handle, last):
        agent.release_xfer_handle(one)
    for one in (own, theirs):
        agent.release_dlist_handle(one)
