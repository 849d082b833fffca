"""The recorder goes on, whatever a step of the history meets."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from baton_serve.router.dashboard.recorder import HistoryRecorder
from tests.kits.router.cluster import Cluster

if TYPE_CHECKING:
    import pytest


class Timers:
    """A loop whose time the test moves on."""

    def __init__(self, now_s: float) -> None:
        self.now_s = now_s
        self.due: list[tuple[float, Callable[[], object]]] = []

    def time(self) -> float:
        return self.now_s

    def call_at(self, when_s: float, call: Callable[[], object]) -> None:
        self.due.append((when_s, call))

    def go_on(self) -> None:
        ((self.now_s, call),) = self.due
        self.due.clear()
        call()


async def test_a_step_that_fails_is_not_the_last_one(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_: Any) -> Any:
        raise KeyError("a bug in a counter")

    recorder = HistoryRecorder(cluster.router.requests)
    timers: Any = Timers(recorder.history.next_s)
    recorder._loop = timers
    with monkeypatch.context() as patched:
        patched.setattr("baton_serve.router.dashboard.recorder.read_totals", broken)
        recorder._wake()
        timers.go_on()
    assert len(caplog.records) == 2
    timers.go_on()
    timers.go_on()
    assert len(recorder.history) >= 2
