"""Processes, each on its cores and with a log, that end with this one."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from baton_serve.core.process.parent_death import die_with_parent

STOP_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class Cores:
    """Where what is measured runs, and where all else does."""

    router: int
    others: int

    @property
    def both(self) -> frozenset[int]:
        """The two of them."""
        return frozenset((self.router, self.others))


def two_cores() -> Cores | None:
    """The first two cores that this process may use; None if it has one."""
    cores = sorted(os.sched_getaffinity(0))
    return Cores(cores[0], cores[1]) if len(cores) > 1 else None


def start(
    argv: Sequence[str],
    log: Path,
    cores: frozenset[int] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    folder: Path | None = None,
    pipe: bool = False,
) -> subprocess.Popen[str]:
    """Start a program in a session of its own. Its output goes to ``log``; with ``pipe`` stdout is to be read here.
    Without ``cores`` it may use all of them.

    Raises OSError if there is no such program.
    """
    with log.open("ab") as file:
        return subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if pipe else file,
            stderr=file,
            text=True,
            env=None if environ is None else dict(environ),
            cwd=folder,
            start_new_session=True,
            preexec_fn=_placed(cores),
        )


def stop(process: subprocess.Popen[str], timeout_s: float = STOP_TIMEOUT_S) -> None:
    """End the process and all of its session, by force after ``timeout_s``."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout_s)
    if process.stdout is not None:
        process.stdout.close()


def _placed(cores: frozenset[int] | None) -> Callable[[], None]:
    end_with_parent = die_with_parent()

    def place() -> None:
        end_with_parent()
        if cores is not None:
            os.sched_setaffinity(0, cores)

    return place
