"""A router's view of its leases: when it renews, and when it believes that one is lost. No store, no time."""

from __future__ import annotations

import itertools

import pytest

from baton_serve.core.leases.renewal import RETRY_MS, AlreadyTrackedError, EngineWork, LeaseOver, TrackedLeases
from baton_serve.core.leases.store import LeaseState, LeaseStatus

DURATION_MS = 6_000
INTERVAL_MS = 1_500
GRACE_MS = 60_000
NOW_MS = 1_000_000
#: When a lease that is tracked at NOW_MS is renewed for the first time.
FIRST_MS = NOW_MS + INTERVAL_MS // 4

HELD, UNKNOWN = LeaseState.HELD, LeaseState.UNKNOWN


@pytest.fixture
def book() -> TrackedLeases:
    return TrackedLeases(duration_ms=DURATION_MS, renew_interval_ms=INTERVAL_MS, redis_grace_ms=GRACE_MS)


def answer(
    book: TrackedLeases, now_ms: int, state: LeaseState, remaining_ms: int = 0, lease_id: str = "a"
) -> list[LeaseOver]:
    return book.answered("e", [LeaseStatus(lease_id, state, remaining_ms)], now_ms, now_ms)


def test_a_tracked_lease_is_renewed_soon_and_then_every_interval(book: TrackedLeases) -> None:
    assert book.next_work_ms() is None
    assert book.track("e", "a", NOW_MS) == book.next_work_ms() == FIRST_MS
    assert book.take_work(FIRST_MS - 1) == []
    assert book.take_work(FIRST_MS) == [EngineWork("e", [], ["a"])]
    assert answer(book, FIRST_MS, HELD, DURATION_MS) == []
    assert book.next_work_ms() == FIRST_MS + INTERVAL_MS
    assert book.take_work(FIRST_MS + INTERVAL_MS - 1) == []
    assert book.take_work(FIRST_MS + INTERVAL_MS) == [EngineWork("e", [], ["a"])]


def test_leases_that_were_read_soon_need_no_renewal(book: TrackedLeases) -> None:
    for number in range(10):
        book.track("e", f"a{number}", NOW_MS)
        book.untrack("e", f"a{number}")
    book.track("e", "b", NOW_MS + 1)
    assert book.take_work(FIRST_MS) == []
    assert book.take_work(FIRST_MS + 1) == [EngineWork("e", [], ["b"])]


@pytest.mark.parametrize("num_leases", [10, 1000])
def test_an_engine_is_asked_twice_in_an_interval_however_many_leases_it_has(
    book: TrackedLeases, num_leases: int
) -> None:
    """Whenever its leases were granted. No lease waits longer than an interval."""
    for number in range(num_leases):
        ms = NOW_MS + number * INTERVAL_MS // num_leases
        book.track("e", f"a{number}", ms)
        book.take_work(ms)
    renewed: list[dict[str, int]] = []
    for ms in range(NOW_MS + INTERVAL_MS, NOW_MS + 6 * INTERVAL_MS):
        renewed += [dict.fromkeys(work.renew, ms) for work in book.take_work(ms)]
    assert len(renewed) <= 2 * 5
    for number in range(num_leases):
        times = [asked[f"a{number}"] for asked in renewed if f"a{number}" in asked]
        assert max(later - first for first, later in itertools.pairwise(times)) <= INTERVAL_MS


def test_leases_of_one_engine_that_are_due_soon_go_together(book: TrackedLeases) -> None:
    later_ms = INTERVAL_MS // 6
    # Renewed for the second time half an interval and a little after FIRST_MS.
    late_ms = FIRST_MS - INTERVAL_MS // 2 + 1
    book.track("e", "late", late_ms - INTERVAL_MS // 4)
    assert book.take_work(late_ms) == [EngineWork("e", [], ["late"])]
    book.track("e", "a", NOW_MS)
    book.track("e", "b", NOW_MS + later_ms)
    book.track("f", "c", NOW_MS + later_ms)
    assert book.take_work(FIRST_MS) == [EngineWork("e", [], ["a", "b"])]
    assert book.take_work(FIRST_MS + later_ms) == [EngineWork("f", [], ["c"])]
    assert len(book) == 4


def test_a_lease_of_which_p_may_not_have_told_the_store_waits_for_the_next_time(book: TrackedLeases) -> None:
    new_ms = INTERVAL_MS // 16
    book.track("e", "old", NOW_MS)
    book.track("e", "told", FIRST_MS - new_ms)
    book.track("e", "new", FIRST_MS - new_ms + 1)
    assert book.take_work(FIRST_MS) == [EngineWork("e", [], ["old", "told"])]
    assert book.next_work_ms() == FIRST_MS + INTERVAL_MS // 2, "not sooner, else an engine would be asked more often"
    assert "new" in book.take_work(FIRST_MS + INTERVAL_MS // 2)[0].renew


def test_a_store_that_was_silent_is_asked_of_new_leases_too(book: TrackedLeases) -> None:
    book.track("e", "old", NOW_MS)
    book.take_work(FIRST_MS)
    book.failed("e", FIRST_MS)
    book.untrack("e", "old")
    book.track("e", "new", FIRST_MS + RETRY_MS - 1)
    book.failed("e", FIRST_MS)
    assert book.take_work(FIRST_MS + RETRY_MS) == [EngineWork("e", [], ["new"])]


def test_the_time_left_counts_from_when_the_renewal_was_sent(book: TrackedLeases) -> None:
    book.track("e", "a", NOW_MS)
    assert book.remaining_ms("e", "a", NOW_MS + 1000) == DURATION_MS - 1000
    book.take_work(NOW_MS + 1000)
    book.answered("e", [LeaseStatus("a", HELD, DURATION_MS)], NOW_MS + 1000, NOW_MS + 1900)
    assert book.remaining_ms("e", "a", NOW_MS + 2000) == DURATION_MS - 1000
    assert book.remaining_ms("e", "a", NOW_MS + 99_000) == 0
    assert book.remaining_ms("e", "b", NOW_MS) is None
    assert book.remaining_ms("f", "a", NOW_MS) is None


@pytest.mark.parametrize("state", [LeaseState.DONE, LeaseState.RELEASED, LeaseState.EXPIRED])
def test_an_ended_lease_is_over_at_once_and_lost_unless_it_was_read(book: TrackedLeases, state: LeaseState) -> None:
    book.track("e", "a", NOW_MS)
    book.take_work(NOW_MS)
    [over] = answer(book, NOW_MS, state)
    assert over == LeaseOver("e", "a", state)
    assert over.lost is (state is not LeaseState.DONE)
    assert book.next_work_ms() is None
    assert answer(book, NOW_MS, state) == []


def test_an_unknown_lease_is_lost_only_after_the_deadline_it_was_promised(book: TrackedLeases) -> None:
    book.track("e", "a", NOW_MS)
    book.take_work(FIRST_MS)
    assert answer(book, FIRST_MS, UNKNOWN) == []
    assert book.next_work_ms() == FIRST_MS + RETRY_MS, "P grants again soon: ask more often"
    assert answer(book, NOW_MS + DURATION_MS - 1, UNKNOWN) == []
    assert answer(book, NOW_MS + DURATION_MS, UNKNOWN) == [LeaseOver("e", "a", UNKNOWN)]


def test_an_unknown_lease_that_is_held_again_is_not_lost(book: TrackedLeases) -> None:
    book.track("e", "a", NOW_MS)
    book.take_work(NOW_MS)
    assert answer(book, NOW_MS + DURATION_MS - 1, UNKNOWN) == []
    assert answer(book, NOW_MS + DURATION_MS, HELD, DURATION_MS) == []
    assert answer(book, NOW_MS + 2 * DURATION_MS, UNKNOWN) == []


def test_after_a_long_silence_p_has_time_to_grant_again(book: TrackedLeases) -> None:
    book.track("e", "a", NOW_MS)
    for second in range(1, 30):
        assert book.failed("e", NOW_MS + second * 1000) == []
    back_ms = NOW_MS + 30_000
    assert answer(book, back_ms, UNKNOWN) == []
    assert answer(book, back_ms + DURATION_MS // 2 - 1, UNKNOWN) == []
    assert answer(book, back_ms + DURATION_MS // 2, UNKNOWN) == [LeaseOver("e", "a", UNKNOWN)]


def test_silence_loses_nothing_before_the_grace_and_then_what_is_overdue(book: TrackedLeases) -> None:
    book.track("e", "a", NOW_MS)
    assert book.failed("e", NOW_MS) == []
    assert book.failed("e", NOW_MS + GRACE_MS - 1) == []
    book.track("e", "young", NOW_MS + GRACE_MS - 1)
    assert book.failed("e", NOW_MS + GRACE_MS) == [LeaseOver("e", "a", UNKNOWN)]
    young_ms = NOW_MS + GRACE_MS - 1 + DURATION_MS
    assert book.failed("e", young_ms - 1) == []
    assert book.failed("e", young_ms) == [LeaseOver("e", "young", UNKNOWN)]
    assert book.failed("e", young_ms) == []


def test_attempts_are_spaced_while_the_store_is_silent_and_all_leases_are_tried(book: TrackedLeases) -> None:
    book.track("e", "a", NOW_MS)
    book.take_work(NOW_MS)
    book.failed("e", NOW_MS)
    book.track("e", "b", NOW_MS)
    book.release("e", "c", NOW_MS)
    assert book.next_work_ms() == NOW_MS + RETRY_MS
    assert book.take_work(NOW_MS + RETRY_MS - 1) == []
    assert book.take_work(NOW_MS + RETRY_MS) == [EngineWork("e", ["c"], ["a", "b"])]


def test_one_engines_silence_does_not_delay_another(book: TrackedLeases) -> None:
    book.track("e", "a", NOW_MS)
    book.track("f", "b", NOW_MS)
    book.failed("e", NOW_MS)
    assert book.take_work(FIRST_MS) == [EngineWork("f", [], ["b"])]


def test_a_release_is_sent_at_once_and_forgotten_when_the_store_knows(book: TrackedLeases) -> None:
    book.track("e", "a", NOW_MS)
    book.release("e", "a", NOW_MS)
    assert len(book) == 0
    [work] = book.take_work(NOW_MS)
    assert work == EngineWork("e", ["a"], [])
    assert book.take_releases() == [work]
    book.released("e", work.release)
    assert book.next_work_ms() is None


def test_a_release_that_the_engine_confirmed_is_not_sent_and_says_nothing_of_the_store(book: TrackedLeases) -> None:
    book.track("e", "b", NOW_MS)
    book.release("e", "a", NOW_MS)
    book.failed("e", NOW_MS)
    assert book.released_elsewhere("e", ["a", "another"]) == 1
    assert book.released_elsewhere("f", ["a"]) == 0
    assert book.take_releases() == []
    assert book.next_work_ms() == NOW_MS + RETRY_MS, "the store is silent all the same"


def test_a_release_is_tried_for_a_duration(book: TrackedLeases) -> None:
    book.release("e", "a", NOW_MS)
    book.failed("e", NOW_MS + DURATION_MS - 1)
    assert [work.release for work in book.take_releases()] == [["a"]]
    book.failed("e", NOW_MS + DURATION_MS)
    assert book.take_releases() == []


def test_silence_over_a_release_that_was_given_up_does_not_count_for_a_later_lease(book: TrackedLeases) -> None:
    book.release("e", "a", NOW_MS)
    book.failed("e", NOW_MS + DURATION_MS)
    later_ms = NOW_MS + 2 * GRACE_MS
    book.track("e", "b", later_ms)
    assert book.failed("e", later_ms + 2 * DURATION_MS) == []


def test_an_untracked_lease_is_not_lost_by_a_late_answer(book: TrackedLeases) -> None:
    book.track("e", "a", NOW_MS)
    book.take_work(NOW_MS)
    assert book.untrack("e", "a")
    assert not book.untrack("e", "a")
    assert not book.untrack("f", "a")
    assert answer(book, NOW_MS, LeaseState.EXPIRED) == []
    assert book.next_work_ms() is None


def test_tracking_a_lease_twice_is_refused(book: TrackedLeases) -> None:
    book.track("e", "a", NOW_MS)
    with pytest.raises(AlreadyTrackedError):
        book.track("e", "a", NOW_MS + 5)
    assert book.remaining_ms("e", "a", NOW_MS) == DURATION_MS


def test_leases_of_all_engines_that_are_due_are_renewed(book: TrackedLeases) -> None:
    engines = ["e", "f", "g"]
    for engine in engines:
        book.track(engine, "a", NOW_MS)
    for now_ms in (FIRST_MS, FIRST_MS + INTERVAL_MS):
        assert book.take_work(now_ms) == [EngineWork(engine, [], ["a"]) for engine in engines]
        assert book.take_work(now_ms) == []


def test_engines_that_are_due_soon_go_along(book: TrackedLeases) -> None:
    soon_ms = INTERVAL_MS // 8
    for engine_id, after_ms in (("e", 0), ("soon", soon_ms), ("later", soon_ms + 1)):
        book.track(engine_id, "a", NOW_MS + after_ms)
    assert book.take_work(FIRST_MS - 1) == [], "nothing is due yet"
    assert [work.engine_id for work in book.take_work(FIRST_MS)] == ["e", "soon"]
    assert book.next_work_ms() == FIRST_MS + soon_ms + 1


def test_an_engine_that_the_store_refused_does_not_go_along(book: TrackedLeases) -> None:
    book.track("e", "a", NOW_MS)
    book.track("refused", "a", NOW_MS)
    book.failed("refused", FIRST_MS - RETRY_MS + 1)
    assert [work.engine_id for work in book.take_work(FIRST_MS)] == ["e"]
    assert [work.engine_id for work in book.take_work(FIRST_MS + 1)] == ["refused"]


@pytest.mark.parametrize("num_engines", [8, 100])
def test_the_store_is_asked_eight_times_in_an_interval_however_many_engines_there_are(
    book: TrackedLeases, num_engines: int
) -> None:
    """Whenever their leases were granted. No lease waits longer than an interval."""
    for number in range(num_engines):
        book.track(f"e{number}", "a", NOW_MS + number * INTERVAL_MS // num_engines)
    asked = [(ms, book.take_work(ms)) for ms in range(NOW_MS, NOW_MS + 6 * INTERVAL_MS)]
    rounds = {ms: {work.engine_id for work in works} for ms, works in asked if works}
    assert len(rounds) <= 8 * 6
    for number in range(num_engines):
        times = [ms for ms, engine_ids in rounds.items() if f"e{number}" in engine_ids]
        assert len(times) >= 5
        assert max(later - first for first, later in itertools.pairwise(times)) <= INTERVAL_MS
