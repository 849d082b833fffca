"""``baton router`` as a real process with a status pipe, and those that it starts."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Self

from baton_serve.core.protocol.status import Ready, Status, decode

ROOT = Path(__file__).parents[3]


class RouterProcess:
    """One ``baton router``. A context manager: nothing of it is left afterwards."""

    def __init__(self, redis_url: str, *flags: str) -> None:
        read_fd, write_fd = os.pipe()
        clean = {key: value for key, value in os.environ.items() if not key.startswith("BATON_")}
        self._status = os.fdopen(read_fd)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "baton_serve", "router", "--port", "0", "--status-fd", str(write_fd), *flags],
            env={**clean, "BATON_REDIS_URL": redis_url, "PYTHONPATH": str(ROOT)},
            pass_fds=(write_fd,),
            stderr=subprocess.PIPE,
            text=True,
        )
        os.close(write_fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for pid in (*self.children(), self._process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        assert self._process.stderr is not None
        self._process.stderr.close()
        self._process.wait()
        self._status.close()

    def statuses(self) -> list[Status]:
        """Everything that it says until it ends."""
        return [decode(line.encode()) for line in self._status]

    def until_ready(self) -> str:
        """Its URL. Fails when it ends before."""
        for line in self._status:
            if isinstance(status := decode(line.encode()), Ready):
                return status.url
        raise AssertionError(f"ended early: {self.finish()[1]}")

    def until_line(self, part: str) -> str:
        """The next line of its log that contains ``part``."""
        assert self._process.stderr is not None
        return next(line for line in self._process.stderr if part in line)

    def children(self) -> list[int]:
        """The processes that it has started and that live."""
        try:
            text = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text()
        except FileNotFoundError:
            return []
        return [int(pid) for pid in text.split()]

    def signal(self, number: signal.Signals) -> None:
        """A signal to the parent alone."""
        self._process.send_signal(number)

    def finish(self) -> tuple[int, str]:
        """Wait for its end: exit code and what was left of standard error."""
        assert self._process.stderr is not None
        errors = self._process.stderr.read()
        return self._process.wait(), errors
