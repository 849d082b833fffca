"""One answer made of several ranks' answers, in whatever order they come."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from baton_serve.core.protocol.steps import (
    CancelRead,
    Connected,
    Disconnect,
    Progress,
    PromptScores,
    RankFailed,
    Read,
    ReadResult,
    Sampled,
    Sent,
    Step,
    StepResult,
    TransferReport,
)
from baton_serve.workers.engine.ports import LeaseRead, ReadFailing
from tests.kits.engine.rank_sinks import Desk

WORST_FIRST = ("failed", "cancelled", "stale", "done")


def read(read_id: int = 1, engine_id: str = "p") -> Read:
    return Read(read_id, engine_id, "lease", [5], [6], [7], [(6, 1)])


def part(
    outcome: str, read_id: int = 1, *, error: str = "", stale: list[int] | None = None, seconds: float = 0.5
) -> ReadResult:
    return ReadResult(read_id, outcome, 100, seconds, error, 2, stale or [])


def received(*parts: ReadResult) -> TransferReport:
    return TransferReport([], list(parts))


def ended(desk: Desk) -> list[ReadResult]:
    """What the engine has heard, all of which are ends of reads."""
    heard = desk.take()
    assert all(isinstance(event, ReadResult) for event in heard)
    return heard


def step(step_id: int = 1) -> Step:
    return Step(step_id, [], [], [], [])


def result(*tokens: int, step_id: int = 1, seconds: float = 0.5, logprob: float | None = None) -> StepResult:
    return StepResult(step_id, [Sampled(seq, token, logprob) for seq, token in enumerate(tokens)], seconds)


# --- steps -------------------------------------------------------------------------------------------------------


def test_one_ranks_step_is_passed_on_as_it_is() -> None:
    desk, answer = Desk(1), result(1, 2)
    desk.traffic.send(step())
    desk.traffic.handle(0, answer)
    assert desk.heard[0] is answer


@given(order=st.permutations(range(4)), seconds=st.lists(st.floats(0, 9), min_size=4, max_size=4))
def test_a_step_is_over_when_the_last_rank_says_so(order: list[int], seconds: list[float]) -> None:
    desk = Desk(4)
    desk.traffic.send(step())
    for count, rank in enumerate(order, 1):
        logprob = -1.0 if rank == 0 else None
        desk.traffic.handle(rank, result(3, 4, seconds=seconds[rank], logprob=logprob))
        assert len(desk.heard) == (count == 4)
    assert desk.heard == [result(3, 4, seconds=max(seconds), logprob=-1.0)]
    assert "0 steps" in repr(desk.traffic)


def test_the_logprobs_of_prompts_are_those_of_rank_0() -> None:
    desk, scores = Desk(2), [PromptScores(7, 1, [-1.0], [2], [[]], [[]])]
    desk.traffic.send(step())
    desk.traffic.handle(1, result(3))
    desk.traffic.handle(0, replace(result(3), scores=scores))
    assert desk.heard == [replace(result(3), scores=scores)]


def test_steps_are_told_apart() -> None:
    desk = Desk(2)
    for step_id in (1, 2):
        desk.traffic.send(step(step_id))
        desk.traffic.handle(1, result(step_id, step_id=step_id))
    desk.traffic.handle(0, result(1, step_id=1))
    desk.traffic.handle(0, result(2, step_id=2))
    assert desk.heard == [result(1, step_id=1), result(2, step_id=2)]


@pytest.mark.parametrize(("rank", "step_id"), [(0, 1), (1, 2)])
def test_an_answer_to_a_step_that_was_not_asked_or_is_answered_is_the_end(rank: int, step_id: int) -> None:
    desk = Desk(2)
    desk.traffic.send(step())
    desk.traffic.handle(0, result(1))
    desk.traffic.handle(rank, result(1, step_id=step_id))
    assert desk.heard == [RankFailed(f"rank {rank} answered step {step_id}, which it was not asked or has answered")]


@pytest.mark.parametrize("num_ranks", [1, 3])
def test_who_has_not_answered_a_step_is_known(num_ranks: int) -> None:
    desk, ranks = Desk(num_ranks), list(range(num_ranks))
    desk.traffic.send(step())
    desk.traffic.send(step(2))
    while ranks:
        assert desk.traffic.silent_ranks(1) == ranks
        desk.traffic.handle(ranks.pop(len(ranks) // 2), result(1))
    assert len(desk.take()) == 1
    assert desk.traffic.silent_ranks(2) == list(range(num_ranks))


# --- reads -------------------------------------------------------------------------------------------------------


def test_an_outcome_that_is_none_is_a_failure() -> None:
    desk = Desk(1)
    desk.traffic.send(read())
    desk.traffic.handle(0, received(part("never heard of")))
    (event,) = ended(desk)
    assert event.outcome == "failed" and "'never heard of'" in event.error


@st.composite
def histories(draw: st.DrawFn) -> tuple[int, list[int], list[ReadResult], list[bool], int, int]:
    """Ranks in the order they answer, their parts, who repeats itself, and when the read is aborted or given up."""
    num_ranks = draw(st.integers(1, 4))
    parts = []
    for _ in range(num_ranks):
        outcome = draw(st.sampled_from([*WORST_FIRST, "done", "done"]))
        stale = draw(st.lists(st.integers(0, 9), max_size=3)) if outcome == "stale" else []
        error = draw(st.sampled_from(["", "no way"])) if outcome != "done" else ""
        parts.append(part(outcome, error=error, stale=stale, seconds=draw(st.floats(0, 9))))
    order = draw(st.permutations(range(num_ranks)))
    again = draw(st.lists(st.booleans(), min_size=num_ranks, max_size=num_ranks))
    return num_ranks, order, parts, again, draw(st.integers(0, 5)), draw(st.integers(0, 5))


@given(history=histories())
def test_a_read_is_as_good_as_its_worst_part_and_ends_with_its_last(
    history: tuple[int, list[int], list[ReadResult], list[bool], int, int],
) -> None:
    num_ranks, order, parts, again, cancel_at, give_up_at = history
    desk = Desk(num_ranks)
    traffic = desk.traffic
    traffic.send(read())
    for count, rank in enumerate(order):
        if count == cancel_at:
            traffic.send(CancelRead(1))
        if count == give_up_at:
            traffic.give_up_read(1)
        assert not any(isinstance(event, ReadResult) for event in desk.heard), "it ended before its last part"
        for _ in range(1 + again[rank]):
            traffic.handle(rank, received(parts[rank]))
    heard = desk.take()
    num_failed = [parts[rank].outcome for rank in order[:-1]].count("failed")
    assert [type(event) for event in heard] == [ReadFailing] * bool(num_failed) + [ReadResult]
    merged = heard[-1]
    assert isinstance(merged, ReadResult)
    outcomes = [one.outcome for one in parts]
    assert merged.outcome == next(outcome for outcome in WORST_FIRST if outcome in outcomes)
    assert (merged.num_bytes, merged.num_descriptors) == (100 * num_ranks, 2 * num_ranks)
    assert merged.seconds == max(one.seconds for one in parts)
    if num_failed:
        assert isinstance(heard[0], ReadFailing) and heard[0].error == merged.error
    is_cancelled = min(cancel_at, give_up_at) < num_ranks or bool(num_failed)
    assert desk.sent == [read()] + [CancelRead(1)] * is_cancelled
    assert desk.peers.reading == {}
    assert desk.peers.given_up == [1] * (give_up_at < num_ranks)
    assert desk.peers.failed == ["p"] * (merged.outcome == "failed")
    # Whatever comes now is too late.
    for rank in order:
        traffic.handle(rank, received(parts[rank]))
    traffic.give_up_read(1)
    traffic.send(CancelRead(1))
    assert desk.take() == []
    assert len(desk.sent) == 1 + is_cancelled
    assert "0 reads" in repr(traffic)


@pytest.mark.parametrize(
    ("parts", "stale"),
    [
        ([part("stale", stale=[7, 3]), part("stale", stale=[3, 5])], [3, 5, 7]),
        ([part("done"), part("stale", stale=[3])], [3]),
        ([part("stale", stale=[3]), part("stale")], []),
        ([part("stale", stale=[3]), part("failed")], []),
    ],
)
def test_what_is_stale_on_any_rank_is_stale(parts: list[ReadResult], stale: list[int]) -> None:
    """A rank that refuses without saying which blocks means all of them, and so must the sum."""
    desk = Desk(2)
    desk.traffic.send(read())
    for rank, one in enumerate(parts):
        desk.traffic.handle(rank, received(one))
    merged = desk.heard[-1]
    assert isinstance(merged, ReadResult) and merged.stale_blocks == stale


def test_the_first_failure_is_told_at_once_with_its_rank_and_the_others_are_stopped() -> None:
    desk = Desk(3)
    desk.traffic.send(read())
    desk.traffic.handle(1, received(part("failed", error="P is gone")))
    assert desk.take() == [ReadFailing(1, "rank 1: P is gone")]
    assert desk.sent == [read(), CancelRead(1)]
    assert desk.peers.failed == [] and desk.peers.reading == {1: "p"}
    desk.traffic.handle(0, received(part("failed", error="another")))
    assert desk.take() == []
    desk.traffic.handle(2, received(part("cancelled")))
    (merged,) = ended(desk)
    assert (merged.outcome, merged.error) == ("failed", "rank 1: P is gone")
    assert desk.peers.failed == ["p"]


def test_an_outcome_nobody_knows_is_a_failure() -> None:
    desk = Desk(1)
    desk.traffic.send(read())
    desk.traffic.handle(0, received(part("odd")))
    (merged,) = ended(desk)
    assert (merged.outcome, merged.error) == ("failed", "the read of P's blocks ended as 'odd'")
    assert desk.peers.failed == ["p"]


def test_the_pool_knows_of_the_end_before_the_engine_does() -> None:
    desk, seen = Desk(1), []
    desk.traffic.on_event = lambda event: seen.append(dict(desk.peers.reading))
    desk.traffic.send(read())
    desk.traffic.handle(0, received(part("done")))
    assert seen == [{}]


def test_one_report_ends_several_reads() -> None:
    desk = Desk(2)
    for read_id, engine_id in ((1, "p"), (2, "q")):
        desk.traffic.send(read(read_id, engine_id))
    desk.traffic.handle(0, received(part("done", 2), part("done", 1)))
    assert desk.take() == []
    desk.traffic.handle(1, received(part("done", 1), part("failed", 2, error="no")))
    assert [(event.read_id, event.outcome) for event in ended(desk)] == [(1, "done"), (2, "failed")]
    assert desk.peers.failed == ["q"]


# --- being read --------------------------------------------------------------------------------------------------


@given(data=st.data(), num_ranks=st.integers(1, 4))
def test_a_lease_is_read_once_per_reader_when_every_rank_was_read(data: st.DataObject, num_ranks: int) -> None:
    desk = Desk(num_ranks)
    said = [(rank, Sent("lease", reader)) for rank in range(num_ranks) for reader in ("d-1", "d-2", "e-1")]
    missing = data.draw(st.sampled_from(said))
    order = data.draw(st.permutations([one for one in said if one != missing]))
    for rank, sent in order:
        desk.traffic.handle(rank, TransferReport([sent], []))
    assert desk.take() == [LeaseRead("lease")] * 2
    desk.traffic.handle(missing[0], TransferReport([missing[1]], []))
    assert desk.take() == [LeaseRead("lease")]
    assert "0 being read" in repr(desk.traffic)


def test_readers_that_never_finish_are_forgotten() -> None:
    desk = Desk(2)
    for number in range(5000):
        desk.traffic.handle(0, TransferReport([Sent("lease", f"d-{number}")], []))
    assert "4096 being read" in repr(desk.traffic)
    desk.traffic.handle(1, TransferReport([Sent("lease", "d-0"), Sent("lease", "d-4999")], []))
    assert desk.take() == [LeaseRead("lease")]


# --- the rest ----------------------------------------------------------------------------------------------------


def test_what_is_not_counted_goes_where_it_belongs() -> None:
    desk = Desk(2)
    desk.traffic.send(Disconnect("p"))
    assert desk.sent == [Disconnect("p")]
    desk.traffic.handle(1, Connected("p", "other weights"))
    assert desk.peers.connected == [(1, Connected("p", "other weights"))]
    desk.traffic.handle(1, Progress("loading"))
    assert desk.take() == []
    desk.traffic.handle(1, RankFailed("out of memory"))
    assert desk.take() == [RankFailed("rank 1: out of memory")]
