"""A router keeps the leases of all engines alive, however many prefilled for it."""

from __future__ import annotations

from core.leases.renewal import EngineWork, TrackedLeases

DURATION_MS, INTERVAL_MS, NOW_MS = 6_000, 1_500, 1_000_000
FIRST_MS = NOW_MS + INTERVAL_MS // 4


def test_leases_of_all_engines_that_are_due_are_renewed() -> None:
    book = TrackedLeases(duration_ms=DURATION_MS, renew_interval_ms=INTERVAL_MS, redis_grace_ms=60_000)
    engines = ["e", "f", "g"]
    for engine in engines:
        book.track(engine, "a", NOW_MS)
    for now_ms in (FIRST_MS, FIRST_MS + INTERVAL_MS):
        assert book.take_work(now_ms) == [EngineWork(engine, [], ["a"]) for engine in engines]
        assert book.take_work(now_ms) == []
