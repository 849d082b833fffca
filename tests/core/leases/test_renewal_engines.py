"""A router keeps the leases of all engines alive, however many prefilled for it."""

from __future__ import annotations

import itertools

import pytest

from baton_serve.core.leases.renewal import RETRY_MS, EngineWork, TrackedLeases

DURATION_MS, INTERVAL_MS, NOW_MS = 6_000, 1_500, 1_000_000
FIRST_MS = NOW_MS + INTERVAL_MS // 4


@pytest.fixture
def book() -> TrackedLeases:
    return TrackedLeases(duration_ms=DURATION_MS, renew_interval_ms=INTERVAL_MS, redis_grace_ms=60_000)


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
