"""This process' clock of the day is hours off, however it is read. What only ever runs, and Redis' clock, are right."""

from __future__ import annotations

import datetime
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

#: More than any lease of the tests lasts, and more than any memory of it.
SHIFT_S = 7 * 3600


def set_wrong(monkeypatch: pytest.MonkeyPatch, shift_s: int) -> None:
    """From now on, until the test ends; also for modules of the leases that know a clock by a name of their own."""
    wrong: dict[int, object] = {id(getattr(time, name)): made for name, made in _functions(shift_s).items()}
    wrong[id(datetime.datetime)] = _datetime(shift_s)
    ours = [module for name, module in sys.modules.items() if name.startswith("baton_serve.core.leases")]
    for module in (time, datetime, *ours):
        for name, value in list(vars(module).items()):
            if id(value) in wrong:
                monkeypatch.setattr(module, name, wrong[id(value)])


def _functions(shift_s: int) -> dict[str, Callable[..., Any]]:
    now, now_ns, clock, clock_ns = time.time, time.time_ns, time.clock_gettime, time.clock_gettime_ns
    utc, local = time.gmtime, time.localtime
    return {
        "time": lambda: now() + shift_s,
        "time_ns": lambda: now_ns() + shift_s * 10**9,
        "clock_gettime": lambda which: clock(which) + shift_s * _is_of_the_day(which),
        "clock_gettime_ns": lambda which: clock_ns(which) + shift_s * 10**9 * _is_of_the_day(which),
        "gmtime": lambda when=None: utc(now() + shift_s if when is None else when),
        "localtime": lambda when=None: local(now() + shift_s if when is None else when),
    }


def _is_of_the_day(which: int) -> bool:
    return which in {time.CLOCK_REALTIME, time.CLOCK_TAI}


def _datetime(shift_s: int) -> type[datetime.datetime]:
    shift = datetime.timedelta(seconds=shift_s)

    class Wrong(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> Wrong:
            return super().now(tz) + shift

        @classmethod
        def utcnow(cls) -> Wrong:
            return super().now(datetime.UTC).replace(tzinfo=None) + shift

        @classmethod
        def today(cls) -> Wrong:
            return super().now() + shift

    return Wrong
