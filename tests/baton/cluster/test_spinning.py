"""Threads that never rest sleep for a moment each time round, in the servers of a run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest

from baton_serve.baton.cluster.spinning import without_spinning

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
CODE = "import os, time; a = time.monotonic(); [os.sched_yield() for _ in range(50)]; print(time.monotonic() - a)"


def run(code: str) -> bytes:
    """What it prints, without an error."""
    environ = {**os.environ, **without_spinning()}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, check=True)
    assert done.stderr == b""
    return done.stdout


@pytest.fixture
def anew() -> Iterator[None]:
    """What was found out before is forgotten, and what is found out here as well."""
    without_spinning.cache_clear()
    yield
    without_spinning.cache_clear()


def test_a_yield_is_a_short_sleep() -> None:
    assert float(run(CODE)) >= 50 * 1e-3, "50 sleeps of 1 ms, at least"


def test_without_a_compiler_servers_are_left_as_they_are(anew: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    assert without_spinning() == {}


def test_what_the_user_has_preloaded_stays(anew: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_PRELOAD", "/theirs.so")
    theirs, ours = without_spinning()["LD_PRELOAD"].split(":")
    assert theirs == "/theirs.so" and ours.endswith(".so")


def test_a_signal_during_the_sleep_is_no_error() -> None:
    code = (
        "import os, signal; signal.signal(signal.SIGALRM, lambda *_: None); "
        "signal.setitimer(signal.ITIMER_REAL, 0.001, 0.0001); [os.sched_yield() for _ in range(100)]; "
        "signal.setitimer(signal.ITIMER_REAL, 0)"
    )
    assert run(code) == b""


POLL = """
import os, select, time
read, write = os.pipe()
poll = select.poll()
poll.register(read, select.POLLIN)
began = time.monotonic()
assert not any(poll.poll(0) for _ in range(50))
took = time.monotonic() - began
began = time.monotonic()
assert poll.poll(1100) == []
waited = time.monotonic() - began
os.write(write, b"x")
assert poll.poll(0) == poll.poll(-1) == poll.poll(1500) == [(read, select.POLLIN)]
print(took, waited)
"""


def test_a_poll_that_waits_for_nothing_and_finds_nothing_is_a_short_sleep() -> None:
    took_s, waited_s = map(float, run(POLL).split())
    assert took_s >= 50 * 1e-3 and waited_s >= 1.1
