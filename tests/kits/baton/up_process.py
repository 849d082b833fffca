"""``baton up`` as a real process, with stand-ins for what it starts."""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

import pytest

StartUp = Callable[..., "UpProcess"]

STAND_IN = Path(__file__).parent / "stand_in.py"
ROOT = Path(__file__).parents[3]
#: The last line of the screen that says that everything is ready.
LAST_LINE = "Ctrl-C"


class UpProcess:
    """One ``baton up`` with stand-ins. Every process under it carries a mark in its environment.

    A context manager: nothing of it is left afterwards, whatever has happened.
    """

    #: What the interpreter is given before ``up``.
    PROGRAM: tuple[str, ...] = (str(STAND_IN),)

    def __init__(self, directory: Path, *flags: str, **environ: str) -> None:
        self.mark = f"UP_TEST_MARK={secrets.token_hex(8)}"
        #: Temporary files of everything under it; a short path, since Redis puts a socket there.
        self.temporary = Path(tempfile.mkdtemp(prefix="baton-test-"))
        self.stopped_path = directory / "stopped"
        self.serving_path = directory / "serving"
        self.log_dir = directory / "logs"
        self.screen = ""
        name, value = self.mark.split("=")
        self._process = subprocess.Popen(
            [sys.executable, *self.PROGRAM, "up", "--log-dir", str(self.log_dir), *flags],
            env={
                **self._environ(),
                name: value,
                "STAND_IN_STOPPED": str(self.stopped_path),
                "STAND_IN_SERVING": str(self.serving_path),
                **environ,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.communicate()
        shutil.rmtree(self.temporary)

    def _environ(self) -> dict[str, str]:
        clean = {key: item for key, item in os.environ.items() if not key.startswith("BATON_")}
        return clean | {"TMPDIR": str(self.temporary), "XDG_RUNTIME_DIR": "", "PYTHONPATH": str(ROOT)}

    @property
    def pid(self) -> int:
        """Of ``baton up`` itself."""
        return self._process.pid

    def baton(self, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """Run another command of ``baton``, as the same user on the same machine."""
        command = [sys.executable, "-m", "baton_serve", *words]
        env = {**self._environ(), **environ}
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)

    def until_ready(self) -> str:
        """Everything it printed up to the end of its screen. Fails when it ends before."""
        assert self._process.stdout is not None
        lines = []
        for line in self._process.stdout:
            lines.append(line)
            if LAST_LINE in line:
                self.screen = "".join(lines)
                return self.screen
        raise AssertionError(f"ended early: {''.join(lines)}{self._process.communicate()[1]}")

    def until_line(self, part: str) -> str:
        """The next line that contains ``part``."""
        assert self._process.stdout is not None
        return next(line for line in self._process.stdout if part in line)

    def rest_of_output(self) -> str:
        """Everything it still prints, up to its end."""
        assert self._process.stdout is not None
        return self._process.stdout.read()

    def close_output(self) -> None:
        """What ``head`` does when it has seen enough."""
        assert self._process.stdout is not None
        nowhere = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nowhere, self._process.stdout.fileno())  # closes the pipe; ``communicate`` still has what it expects
        os.close(nowhere)

    def until_serving(self, *roles: str) -> None:
        """Wait until these are ready, for those who do not read what it prints. Fails when it ends before."""
        while self._process.poll() is None:
            if self.serving_path.exists() and set(roles) <= set(self.serving_path.read_text().split()):
                return
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(0.05)
        raise AssertionError(f"ended early: {self._process.communicate()[1]}")

    def ctrl_c(self) -> None:
        """What a terminal does: SIGINT to the whole foreground process group."""
        os.killpg(self._process.pid, signal.SIGINT)

    def signal(self, number: signal.Signals) -> None:
        """A signal to ``baton up`` alone."""
        self._process.send_signal(number)

    def finish(self) -> tuple[int, str]:
        """Wait for its end: exit code and standard error."""
        _, errors = self._process.communicate()
        return self._process.returncode, errors

    def stop_well(self) -> None:
        """Ctrl-C; fails if it complains, or leaves a process behind."""
        self.ctrl_c()
        assert self.finish() == (0, "")
        assert self.pids() == {}

    def stopped(self) -> list[str]:
        """Roles in the order in which they were stopped."""
        return self.stopped_path.read_text().split() if self.stopped_path.exists() else []

    def pids(self) -> dict[int, str]:
        """Every living process that descends from it (itself included), with its command line."""
        found = {}
        for process in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if process.name.isdigit() and self._is_ours(process):
                    found[int(process.name)] = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        return found

    def _is_ours(self, process: Path) -> bool:
        """By the mark; Redis overwrites its environment with its title, so that one by where it lives."""
        if self.mark.encode() in (process / "environ").read_bytes().split(b"\0"):
            return True
        return self.temporary in (process / "cwd").readlink().parents

    def pid_of(self, part: str) -> int:
        """The process whose command line contains ``part``."""
        return next(pid for pid, command in self.pids().items() if part in command)


class RealUpProcess(UpProcess):
    """One ``baton up`` as people start it."""

    PROGRAM = ("-m", "baton_serve")


def wait_for_end(pids: list[int]) -> None:
    """Block until all these processes have ended."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            descriptor = os.pidfd_open(pid)
            try:
                select.select([descriptor], [], [])
            finally:
                os.close(descriptor)


@pytest.fixture
def start_up(tmp_path: Path) -> Iterator[StartUp]:
    """Starts ``baton up``, as often as it is called with flags and variables; all of them are gone after the test."""
    with contextlib.ExitStack() as started:
        yield lambda *flags, **environ: started.enter_context(UpProcess(tmp_path, *flags, **environ))


@pytest.fixture
def ready_up(start_up: StartUp, model_dir: str) -> StartUp:
    """The same with a model and a port that is free, up to the end of its screen."""

    def start(*flags: str, **environ: str) -> UpProcess:
        up: UpProcess = start_up("--model", model_dir, "--port", "0", *flags, **environ)
        up.until_ready()
        return up

    return start


@pytest.fixture
def model_dir(tmp_path: Path) -> str:
    """A folder that looks enough like a model for ``baton up``; stand-ins never load it."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return str(folder)
