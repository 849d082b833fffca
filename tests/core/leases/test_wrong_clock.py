"""The clock that is wrong in the stores' tests really is, and those that only ever run are not."""

from __future__ import annotations

import calendar
import datetime
import time

import pytest

from tests.kits.leases.wrong_clock import SHIFT_S, set_wrong

#: More than these tests take.
SLACK_S = 600


@pytest.mark.parametrize("shift_s", [-SHIFT_S, SHIFT_S])
def test_every_clock_of_the_day_is_wrong_and_no_other(monkeypatch: pytest.MonkeyPatch, shift_s: int) -> None:
    right, began_s = time.time(), time.monotonic()
    set_wrong(monkeypatch, shift_s)
    read = [
        time.time(),
        time.time_ns() / 1e9,
        time.clock_gettime(time.CLOCK_REALTIME),
        time.clock_gettime_ns(time.CLOCK_REALTIME) / 1e9,
        calendar.timegm(time.gmtime()),
        time.mktime(time.localtime()),
        datetime.datetime.now(datetime.UTC).timestamp(),
        datetime.datetime.now().timestamp(),  # noqa: DTZ005 (any way to read it)
        datetime.datetime.today().timestamp(),  # noqa: DTZ002
        datetime.datetime.utcnow().replace(tzinfo=datetime.UTC).timestamp(),  # noqa: DTZ003
    ]
    assert [shown - right for shown in read] == [pytest.approx(shift_s, abs=SLACK_S)] * len(read)
    assert time.gmtime(0).tm_year == 1970
    assert 0 <= time.monotonic() - began_s < SLACK_S
    assert 0 <= time.clock_gettime(time.CLOCK_MONOTONIC) - began_s < SLACK_S
