"""P's own view of its leases: what it asks, what answers mean, what silence means. No store, no time."""

from __future__ import annotations

import itertools

import pytest

from baton_serve.core.leases.holder import MAX_UNRENEWED_GRANTS, RETRY_MS, TELL_DELAY_MS, Ended, LeaseHolder, Work
from baton_serve.core.leases.holder_state import (
    NEXT,
    PINNING,
    DuplicateLeaseError,
    HolderError,
    HolderEvent,
    HolderState,
    NotHeldError,
)
from baton_serve.core.leases.store import LeaseState, LeaseStatus

DURATION_MS = 6_000
GRACE_MS = 60_000
START_MS = 1_000_000
SYNC_MS = DURATION_MS // 4


@pytest.fixture
def holder() -> LeaseHolder:
    return LeaseHolder(duration_ms=DURATION_MS, redis_grace_ms=GRACE_MS, now_ms=START_MS)


def held(holder: LeaseHolder, *lease_ids: str, now_ms: int = START_MS) -> None:
    for lease_id in lease_ids:
        holder.grant(lease_id, now_ms)
    holder.tell_now()
    work = holder.take_work(now_ms)
    assert work.grant == list(lease_ids)
    holder.granted(work.grant, now_ms)


def answer(holder: LeaseHolder, now_ms: int, **states: LeaseState | int) -> list[Ended]:
    """Take the work that is due, answer its reap; an int is the time left of a held lease."""
    work = holder.take_work(now_ms)
    assert set(work.reap) == set(states)
    statuses = [
        LeaseStatus(key, LeaseState.HELD, value) if isinstance(value, int) else LeaseStatus(key, value)
        for key, value in states.items()
    ]
    return holder.answered(work, statuses, now_ms)


def test_a_holder_without_leases_has_nothing_to_do(holder: LeaseHolder) -> None:
    assert holder.next_work_ms() is None
    assert not holder.take_work(START_MS + 10 * DURATION_MS)


def test_a_grant_is_told_after_the_delay_and_then_a_sync_every_quarter(holder: LeaseHolder) -> None:
    holder.grant("a", START_MS)
    assert holder.next_work_ms() == START_MS + TELL_DELAY_MS
    assert not holder.take_work(START_MS + TELL_DELAY_MS - 1)
    assert holder.take_work(START_MS + TELL_DELAY_MS) == Work(grant=["a"])
    holder.granted(["a"], START_MS)
    assert holder.next_work_ms() == START_MS + SYNC_MS
    assert not holder.take_work(START_MS + SYNC_MS - 1)
    assert answer(holder, START_MS + SYNC_MS, a=DURATION_MS) == []
    assert holder.next_work_ms() == START_MS + 2 * SYNC_MS


def test_a_release_makes_the_holder_ask_at_once_even_while_an_answer_is_coming(holder: LeaseHolder) -> None:
    held(holder, "a")
    holder.sync_soon()
    work = holder.take_work(START_MS)
    assert work.reap == ["a"]
    holder.sync_soon()
    holder.answered(work, [LeaseStatus("a", LeaseState.HELD, DURATION_MS)], START_MS)
    assert answer(holder, START_MS, a=LeaseState.RELEASED) == [Ended("a", LeaseState.RELEASED)]
    assert len(holder) == 0
    assert holder.next_work_ms() is None


def test_a_lease_with_little_time_left_is_asked_about_when_it_falls_due(holder: LeaseHolder) -> None:
    held(holder, "a", "b")
    assert answer(holder, START_MS + SYNC_MS, a=100, b=DURATION_MS) == []
    assert holder.next_work_ms() == START_MS + SYNC_MS + 100
    ended = answer(holder, START_MS + SYNC_MS + 100, a=LeaseState.EXPIRED, b=DURATION_MS)
    assert ended == [Ended("a", LeaseState.EXPIRED)]
    assert holder.pinned() == ["b"]


@pytest.mark.parametrize("how", ["done", "drop"])
@pytest.mark.parametrize("confirmed", [True, False])
def test_a_lease_that_p_ends_is_unpinned_at_once_and_told_to_the_store_next(
    holder: LeaseHolder, how: str, confirmed: bool
) -> None:
    if confirmed:
        held(holder, "a")
    else:
        holder.grant("a", START_MS)
    getattr(holder, how)("a", START_MS)
    assert holder.pinned() == []
    assert holder.next_work_ms() == (START_MS + TELL_DELAY_MS if how == "done" else 0)
    work = holder.take_work(START_MS + TELL_DELAY_MS)
    assert work == (Work(done=["a"]) if how == "done" else Work(release=["a"], reap=["a"]))
    told = [] if how == "done" else [LeaseStatus("a", LeaseState.RELEASED)]
    assert holder.answered(work, told, START_MS) == []
    assert holder.next_work_ms() is None
    with pytest.raises(NotHeldError):
        holder.done("a", START_MS)


def test_an_answer_overtaken_by_our_own_end_is_dropped(holder: LeaseHolder) -> None:
    held(holder, "a")
    holder.sync_soon()
    work = holder.take_work(START_MS)
    holder.done("a", START_MS)
    assert holder.answered(work, [LeaseStatus("a", LeaseState.EXPIRED)], START_MS) == []
    assert holder.take_work(START_MS + TELL_DELAY_MS).done == ["a"]


def test_a_grant_confirmed_after_the_end_is_still_told(holder: LeaseHolder) -> None:
    holder.grant("a", START_MS)
    work = holder.take_work(START_MS + TELL_DELAY_MS)
    assert work.grant == ["a"]
    holder.done("a", START_MS + TELL_DELAY_MS)
    holder.granted(work.grant, START_MS + TELL_DELAY_MS)
    assert holder.pinned() == []
    assert holder.take_work(START_MS + 2 * TELL_DELAY_MS).done == ["a"]


def test_a_dropped_lease_is_told_at_once_with_all_that_waits(holder: LeaseHolder) -> None:
    holder.grant("a", START_MS)
    holder.grant("b", START_MS)
    holder.drop("b", START_MS)
    assert holder.take_work(START_MS) == Work(grant=["a"], release=["b"], reap=["b"])


def test_a_lease_read_before_its_grant_was_told_is_only_told_as_read(holder: LeaseHolder) -> None:
    holder.grant("a", START_MS)
    holder.done("a", START_MS + 1)
    assert holder.take_work(START_MS + TELL_DELAY_MS) == Work(done=["a"])


def test_a_release_that_is_heard_does_not_wait_for_the_grant(holder: LeaseHolder) -> None:
    holder.grant("a", START_MS)
    holder.sync_soon()
    assert holder.take_work(START_MS) == Work(grant=["a"])


def test_the_delay_is_short_beside_a_short_duration() -> None:
    holder = LeaseHolder(duration_ms=640, redis_grace_ms=GRACE_MS, now_ms=START_MS)
    holder.grant("a", START_MS)
    assert holder.next_work_ms() == START_MS + 10


def test_a_timer_of_an_earlier_lease_also_tells_leases_granted_since(holder: LeaseHolder) -> None:
    holder.grant("a", START_MS)
    holder.sync_soon()
    holder.granted(holder.take_work(START_MS + 10).grant, START_MS + 10)
    holder.grant("b", START_MS + 20)
    assert not holder.take_work(START_MS + TELL_DELAY_MS)
    holder.tell_now()
    assert holder.take_work(START_MS + TELL_DELAY_MS).grant == ["b"]


@pytest.mark.parametrize("late_ms", [0, 1, 2 * DURATION_MS])
def test_a_renewal_that_p_hears_of_late_counts(holder: LeaseHolder, late_ms: int) -> None:
    """P asks about a lease when it falls due, and hears only then that it was renewed: the store decides."""
    held(holder, "a")
    now_ms = START_MS + DURATION_MS + late_ms
    assert answer(holder, now_ms, a=10) == []
    assert holder.pinned() == ["a"]
    assert holder.next_work_ms() == now_ms + 10


def test_an_unknown_lease_is_granted_again(holder: LeaseHolder) -> None:
    held(holder, "a")
    assert answer(holder, START_MS + SYNC_MS, a=LeaseState.UNKNOWN) == []
    assert holder.pinned() == ["a"]
    assert holder.take_work(START_MS + SYNC_MS).grant == ["a"]


def test_a_store_that_keeps_losing_an_unrenewed_lease_ends_it(holder: LeaseHolder) -> None:
    held(holder, "a")
    now_ms = START_MS
    for _ in range(MAX_UNRENEWED_GRANTS - 1):
        now_ms += SYNC_MS
        assert answer(holder, now_ms, a=LeaseState.UNKNOWN) == []
        holder.granted(holder.take_work(now_ms).grant, now_ms)
    now_ms += SYNC_MS
    assert answer(holder, now_ms, a=LeaseState.UNKNOWN) == [Ended("a", LeaseState.EXPIRED)]


def test_a_renewal_in_between_starts_the_count_of_unrenewed_grants_again(holder: LeaseHolder) -> None:
    held(holder, "a")
    now_ms = START_MS
    for _ in range(2 * MAX_UNRENEWED_GRANTS):
        now_ms += SYNC_MS
        assert answer(holder, now_ms, a=DURATION_MS) == []
        now_ms += SYNC_MS
        assert answer(holder, now_ms, a=LeaseState.UNKNOWN) == []
        holder.granted(holder.take_work(now_ms).grant, now_ms)


def fail_until(holder: LeaseHolder, start_ms: int, end_ms: int) -> list[Ended]:
    ended = []
    for now_ms in range(start_ms, end_ms, RETRY_MS):
        holder.take_work(now_ms)
        ended += holder.failed(now_ms)
    return ended


def test_silence_keeps_everything_for_the_grace_and_then_ends_what_is_overdue(holder: LeaseHolder) -> None:
    held(holder, "a")
    silent_ms = START_MS + SYNC_MS
    assert fail_until(holder, silent_ms, silent_ms + GRACE_MS) == []
    assert holder.pinned() == ["a"]
    holder.grant("young", silent_ms + GRACE_MS - 1)
    assert holder.failed(silent_ms + GRACE_MS) == [Ended("a", LeaseState.EXPIRED)]
    assert holder.pinned() == ["young"]
    overdue_ms = silent_ms + GRACE_MS - 1 + DURATION_MS
    assert holder.failed(overdue_ms) == [Ended("young", LeaseState.EXPIRED)]


def test_attempts_during_silence_are_spaced(holder: LeaseHolder) -> None:
    held(holder, "a")
    holder.failed(START_MS)
    holder.sync_soon()
    assert holder.next_work_ms() == START_MS + RETRY_MS
    assert not holder.take_work(START_MS + RETRY_MS - 1)
    assert holder.take_work(START_MS + RETRY_MS).reap == ["a"]


def test_after_a_long_silence_leases_that_ran_low_are_granted_before_any_is_reaped(holder: LeaseHolder) -> None:
    held(holder, "a")
    assert fail_until(holder, START_MS + SYNC_MS, START_MS + 3 * DURATION_MS) == []
    now_ms = START_MS + 4 * DURATION_MS
    work = holder.take_work(now_ms)
    assert work == Work(grant=["a"])
    holder.granted(work.grant, now_ms)
    assert holder.reachable
    assert answer(holder, now_ms + SYNC_MS, a=DURATION_MS - SYNC_MS) == []


def test_a_short_silence_grants_nothing_again(holder: LeaseHolder) -> None:
    held(holder, "a")
    holder.failed(START_MS + 10)
    assert holder.take_work(START_MS + 10 + RETRY_MS) == Work(reap=["a"])


def test_pressure_gives_up_the_oldest_that_only_silence_keeps(holder: LeaseHolder) -> None:
    held(holder, "old", "older-than-young")
    overdue_ms = START_MS + DURATION_MS
    assert holder.give_up_oldest(overdue_ms) is None, "the store answers: a reap decides"
    holder.failed(START_MS + 1)
    assert holder.give_up_oldest(overdue_ms - 1) is None, "promised until the deadline"
    holder.grant("young", overdue_ms)
    assert holder.give_up_oldest(overdue_ms) == "old"
    assert holder.give_up_oldest(overdue_ms) == "older-than-young"
    assert holder.give_up_oldest(overdue_ms) is None
    work = holder.take_work(overdue_ms + RETRY_MS)
    assert (work.grant, work.release) == (["young"], ["old", "older-than-young"])


def test_ends_during_a_long_silence_do_not_pile_up(holder: LeaseHolder) -> None:
    held(holder, "a")
    holder.done("a", START_MS)
    holder.failed(START_MS + DURATION_MS + GRACE_MS - 1)
    assert holder.next_work_ms() is not None
    holder.failed(START_MS + DURATION_MS + GRACE_MS)
    assert holder.next_work_ms() is None


def test_misuse_is_a_typed_error_and_changes_nothing(holder: LeaseHolder) -> None:
    held(holder, "a")
    before = repr(holder)
    with pytest.raises(DuplicateLeaseError):
        holder.grant("a", START_MS)
    for misuse in (holder.done, holder.drop):
        with pytest.raises(NotHeldError):
            misuse("never", START_MS)
    assert repr(holder) == before == "<LeaseHolder reachable held=1>"


def test_the_table_of_states_ends_no_lease_twice() -> None:
    for state, event in itertools.product(HolderState, HolderEvent):
        if state not in PINNING:
            assert NEXT.get((state, event), "illegal") == (None if event is HolderEvent.SETTLED else "illegal")
    assert issubclass(NotHeldError, HolderError)
    assert issubclass(DuplicateLeaseError, HolderError)
