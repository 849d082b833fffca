"""Threads that spin around ``sched_yield`` sleep in the servers of a run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from baton.cluster.spinning import without_spinning

CODE = "import os, time; a = time.monotonic(); [os.sched_yield() for _ in range(200)]; print(time.monotonic() - a)"


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_a_yield_is_a_short_sleep() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE], env={**os.environ, **without_spinning()}, capture_output=True, check=True
    )
    assert float(done.stdout) >= 200 * 50e-6, "200 sleeps of 50 us, at least"


def test_without_a_compiler_servers_are_left_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    without_spinning.cache_clear()
    try:
        assert without_spinning() == {}
    finally:
        without_spinning.cache_clear()
