"""A router that can be measured, and how it is run."""

from __future__ import annotations

import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import httpx

from baton_serve.baton.processes.vllm.held_ports import HeldPorts
from bench.processes import Cores, start, stop
from bench.router.harness.engines import Engines
from bench.router.harness.flow import PATHS, Flow, question
from bench.router.harness.load import Target

#: A router that gives no answer after this many seconds never will.
START_TIMEOUT_S = 90.0
INSTALL_TIMEOUT_S = 600.0
POLL_S = 0.2


class RouterError(Exception):
    """A router that cannot be measured. The message is one line."""


@dataclass(frozen=True)
class Place:
    """Where a router is to serve, whom it is to ask, and where it can put files and its log."""

    port: int
    second_port: int
    engines: Engines
    folder: Path
    cores: Cores


@dataclass(frozen=True)
class Command:
    """How a router is started. An ``environ`` of None is this process's own. It runs on a core of its own, or on
    ``both``: the one of the load as well.
    """

    argv: list[str]
    environ: Mapping[str, str] | None = None
    folder: Path | None = None
    both: bool = False


class Router(Protocol):
    """A kind of router."""

    @property
    def name(self) -> str:
        """What it is called in tables."""

    @property
    def flow(self) -> Flow:
        """What it does with a request."""

    def command(self, place: Place) -> AbstractContextManager[Command]:
        """What it takes to start it; what it needs beside it runs while inside. Raises RouterError."""


@contextmanager
def running(router: Router, engines: Engines, folder: Path, cores: Cores) -> Iterator[Target]:
    """Run a router while inside; it has answered once. Raises RouterError."""
    log = folder / f"{router.name}.log"
    with HeldPorts() as ports:
        place = Place(ports.take(), ports.take(), engines, folder, cores)
        with router.command(place) as command:
            own = cores.both if command.both else frozenset({cores.router})
            try:
                process = start(command.argv, log, own, environ=command.environ, folder=command.folder)
            except OSError as error:
                raise RouterError(f"{router.name}: {error}") from None
            try:
                url, body = f"http://127.0.0.1:{place.port}{PATHS[0]}", question(PATHS[0], stream=False)
                wait_for_answer(router.name, url, body, process, log)
                yield Target(router.name, place.port, process.pid, router.flow.waits_for_p)
            finally:
                stop(process)


def wait_for_answer(name: str, url: str, body: Mapping[str, object], process: subprocess.Popen[str], log: Path) -> None:
    """Ask until the answer to a POST has choices. Raises RouterError."""
    end_s = time.monotonic() + START_TIMEOUT_S
    while not _answers(url, body):
        if process.poll() is not None:
            raise RouterError(f"{name}: ended with status {process.returncode}; see {log}")
        if time.monotonic() > end_s:
            raise RouterError(f"{name}: gives no answer; see {log}")
        time.sleep(POLL_S)


def _answers(url: str, body: Mapping[str, object]) -> bool:
    try:
        answer = httpx.post(url, json=body, trust_env=False, timeout=START_TIMEOUT_S)
    except httpx.HTTPError:
        return False
    return answer.status_code == httpx.codes.OK and "choices" in answer.text


class Peer(ABC):
    """A router of somebody else, which is installed in a folder of its own: nothing of the system changes."""

    name: str

    @property
    @abstractmethod
    def installed(self) -> bool:
        """Whether it is there."""

    @abstractmethod
    def fetch(self) -> None:
        """Fetch it. Raises RouterError."""

    def install(self) -> None:
        """Fetch it if it is not there. Raises RouterError."""
        if not self.installed:
            self.fetch()
            if not self.installed:
                raise RouterError(f"{self.name}: was installed, and is not there")

    def _run(self, argv: Sequence[str], folder: Path) -> None:
        try:
            done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise RouterError(f"{self.name}: cannot be installed: {error}") from None
        if done.returncode:
            lines = (done.stderr or done.stdout).strip().splitlines() or ["no reason is given"]
            raise RouterError(f"{self.name}: cannot be installed: {lines[-1]}")
