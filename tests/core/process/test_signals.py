"""Signals as calls on the loop, while somebody wants them."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest

from baton_serve.core.process.signals import on_signals


@pytest.fixture(params=[signal.SIG_DFL, signal.SIG_IGN], ids=["default", "ignored"])
def before(request: pytest.FixtureRequest) -> Iterator[signal.Handlers]:
    """What SIGHUP did before."""
    kept = signal.signal(signal.SIGHUP, request.param)
    yield request.param
    signal.signal(signal.SIGHUP, kept)


async def test_signals_are_handled_on_the_loop_while_inside(before: signal.Handlers) -> None:
    taken: list[signal.Signals] = []
    came = asyncio.Event()

    def take(number: signal.Signals) -> None:
        taken.append(number)
        came.set()

    with on_signals(take, (signal.SIGHUP,)):
        os.kill(os.getpid(), signal.SIGHUP)
        await asyncio.wait_for(came.wait(), 5)
    assert taken == [signal.SIGHUP]
    assert signal.getsignal(signal.SIGHUP) == before


async def test_no_signal_is_handled_outside_the_main_thread() -> None:
    async def enter() -> signal.Handlers | int | None:
        with on_signals(lambda _: None, (signal.SIGHUP,)):
            return signal.getsignal(signal.SIGHUP)  # type: ignore[return-value]

    before = signal.getsignal(signal.SIGHUP)
    assert await asyncio.to_thread(lambda: asyncio.run(enter())) == before
