"""One rank checks the words of another, with NIXL."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import nixl._api as nixl
import pytest

from workers.vllm.agent import LateNotices, nixl_errors
from workers.vllm.fence.promises import NO_WORD, Promise, Promises
from workers.vllm.fence.reads import FenceReads, Verdict
from workers.vllm.fence.tables import MEMORY, Table, Tables
from workers.vllm.fence.words import Words

NUM_SLOTS = 16
P = "P's engine"
PATIENCE_S = 30


@dataclass
class Rank:
    """One rank with an agent and a registered table."""

    agent: Any
    words: Words

    @classmethod
    def start(cls, name: str, num_landings: int = 8) -> Rank:
        """A rank whose table NIXL knows."""
        agent = nixl.nixl_agent(name)
        words = Words(NUM_SLOTS, num_landings)
        agent.register_memory(agent.get_reg_descs([(words.address, words.array.nbytes, 0, "")], MEMORY))
        return cls(agent, words)


@dataclass
class Pair:
    """D, and P with the promises of its scheduler."""

    p: Rank
    d: Rank
    promises: Promises
    tables: Tables
    reads: FenceReads

    def hand_off(self, request_id: str) -> Promise:
        """P has prefilled, and keeps the blocks."""
        self.promises.begin(request_id)
        self.p.words.apply(self.promises.news())
        promise = self.promises.promise(request_id)
        assert promise is not None
        return promise

    def verdict(self, request_id: str) -> Verdict:
        """D's, once it has one."""
        end_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < end_s:
            verdict = self.reads.settle([request_id])[request_id]
            if verdict is not None:
                return verdict
        raise AssertionError("no verdict")


@pytest.fixture
def pair() -> Iterator[Pair]:
    p, d = Rank.start("p"), Rank.start("d", num_landings=2)
    name = d.agent.add_remote_agent(p.agent.get_agent_metadata())
    tables = Tables(d.agent)
    tables.meet(P, {0: (name, Table(P, p.words.address, NUM_SLOTS))})
    reads = FenceReads(d.agent, d.words, tables, nixl_errors(d.agent))
    yield Pair(p, d, Promises(NUM_SLOTS), tables, reads)
    reads.close()
    tables.forget(P)


def test_blocks_that_p_keeps_are_good(pair: Pair) -> None:
    for request_id in ("a", "b", "c"):
        pair.reads.expect(request_id, pair.hand_off(request_id))
        pair.reads.reads_from(request_id, P, 0)
        assert pair.verdict(request_id) is Verdict.KEPT
        pair.reads.forget(request_id)
    assert pair.reads.settle(["a", "b", "c"]) == {}


def test_what_p_has_ended_is_stale_whoever_has_the_slot_now(pair: Pair) -> None:
    promise = pair.hand_off("a")
    pair.p.words.end(["a"])
    pair.reads.expect("a", promise)
    pair.reads.reads_from("a", P, 0)
    assert pair.verdict("a") is Verdict.STALE
    pair.promises.end("a")
    for number in range(NUM_SLOTS):  # one of them has the same slot
        pair.hand_off(str(number))
    assert pair.p.words.array[promise.slot] not in (NO_WORD, promise.word)
    pair.reads.expect("again", promise)
    pair.reads.reads_from("again", P, 0)
    assert pair.verdict("again") is Verdict.STALE


@pytest.mark.parametrize("promise", [None, Promise(NUM_SLOTS, 5)])
def test_a_hand_off_without_a_promise_that_fits_is_not_used(pair: Pair, promise: Promise | None) -> None:
    pair.reads.expect("a", promise)
    pair.reads.reads_from("a", P, 0)
    assert pair.verdict("a") is Verdict.UNPROMISED


def test_a_promise_of_an_engine_that_was_forgotten_is_not_used(pair: Pair) -> None:
    pair.reads.expect("a", pair.hand_off("a"))
    pair.reads.reads_from("a", P, 0)
    pair.tables.forget(P)
    assert P not in pair.tables
    assert pair.verdict("a") is Verdict.UNPROMISED


def test_what_is_read_from_an_engine_without_a_table_has_no_verdict(pair: Pair) -> None:
    pair.reads.expect("a", None)
    assert pair.reads.settle(["a", "unknown"]) == {}


def test_more_checks_than_landings_take_turns(pair: Pair) -> None:
    names = [str(number) for number in range(NUM_SLOTS)]
    for name in names:
        pair.reads.expect(name, pair.hand_off(name))
        pair.reads.reads_from(name, P, 0)
    pair.p.words.end(names[::2])
    verdicts: dict[str, Verdict | None] = {}
    end_s = time.monotonic() + PATIENCE_S
    while len(verdicts) < len(names) and time.monotonic() < end_s:
        found = pair.reads.settle([name for name in names if name not in verdicts])
        verdicts |= {name: verdict for name, verdict in found.items() if verdict is not None}
    assert verdicts == {name: (Verdict.KEPT if int(name) % 2 else Verdict.STALE) for name in names}


def test_one_stale_rank_of_several_is_enough(pair: Pair) -> None:
    other = Rank.start("p-1")
    name = pair.d.agent.add_remote_agent(other.agent.get_agent_metadata())
    pair.tables.forget(P)
    ranks = {0: ("p", Table(P, pair.p.words.address, NUM_SLOTS)), 1: (name, Table(P, other.words.address, NUM_SLOTS))}
    pair.tables.meet(P, ranks)
    for request_id, ended in (("a", False), ("b", True)):
        pair.promises.begin(request_id)
        told = pair.promises.news()
        for rank in (pair.p, other):
            rank.words.apply(told)
        if ended:
            other.words.end([request_id])
        pair.reads.expect(request_id, told.begun[request_id])
        for rank_number in (0, 1):
            pair.reads.reads_from(request_id, P, rank_number)
        assert pair.verdict(request_id) is (Verdict.STALE if ended else Verdict.KEPT)


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
