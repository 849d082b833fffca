"""One process of a cluster: how it is started, and what is known about it while it runs."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

from baton_serve.baton.cluster.spinning import without_spinning
from baton_serve.baton.processes.child import COMMAND, Child, ChildDiedError, ChildSpec
from baton_serve.baton.processes.vllm.program import VllmProgram
from baton_serve.baton.processes.vllm.server import ServerPlace, ServerShare, VllmModel, server_spec
from baton_serve.core.process.child_secrets import environ_for
from baton_serve.core.process.descendants import children_of, descendants_of
from baton_serve.core.process.failpoints import VARIABLE as FAILPOINTS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

#: A process of ours that does not serve after this many seconds never will, however busy the machine.
START_TIMEOUT_S = 300.0
#: Longest start of a vLLM server, seconds: beside three others on two cores it takes minutes.
VLLM_START_TIMEOUT_S = 900.0
ROUTER = "router"
#: Flags of ``baton worker`` or ``baton router`` without the leading dashes. True is a bare flag.
Flags = Mapping[str, Any]
T = TypeVar("T")


class Startable(Protocol):
    """How a process of a cluster is started."""

    @property
    def kind(self) -> str:
        """``router``, or a worker's role."""

    @property
    def start_timeout_s(self) -> float:
        """If it does not serve after this many seconds it never will."""

    @property
    def has_failpoints(self) -> bool:
        """Whether it can be made to die at a line of its code."""

    @property
    def worker_id(self) -> str:
        """The id of a worker that reports none when it is ready; else empty."""

    def ranks(self, pid: int) -> list[int]:
        """The process ids of its ranks, whose start has this id; empty when they have ended."""

    def kill(self, child: Child) -> bool:
        """Kill it as its death would; returns False when it has ended already."""

    def child_spec(self, name: str, redis_url: str, failpoints: str) -> ChildSpec:
        """The spec of one start."""


@dataclass(frozen=True)
class ProcessSpec:
    """How a router or a worker of ours is started. ``kind`` is ``router``, or a worker's role."""

    kind: str
    flags: Flags = field(default_factory=dict)
    #: Environment variables in addition to the inherited ones.
    environ: Mapping[str, str] = field(default_factory=dict)
    #: A command, with arguments, that the process is run by: ``("ip", "netns", "exec", "far")``.
    prefix: tuple[str, ...] = ()
    #: Variables with these prefixes are not inherited. Settings come from ``flags`` and ``environ`` alone.
    not_inherited: tuple[str, ...] = ("BATON_",)
    start_timeout_s: float = START_TIMEOUT_S
    has_failpoints: ClassVar[bool] = True
    worker_id: ClassVar[str] = ""

    def ranks(self, pid: int) -> list[int]:
        """The process ids of a worker's ranks, in order of rank; empty when the worker has ended."""
        return ranks_of(pid)

    def kill(self, child: Child) -> bool:
        """Kill the main process alone: its ranks notice that, and end."""
        return child.pid is not None and send(child.pid, signal.SIGKILL)

    def child_spec(self, name: str, redis_url: str, failpoints: str) -> ChildSpec:
        """The spec of one start."""
        verb = "router" if self.kind == ROUTER else "worker"
        argv = [*self.prefix, *COMMAND, verb]
        given = {} if self.kind == ROUTER else {"role": self.kind}
        for flag, value in {"redis-url": redis_url, **given, **self.flags}.items():
            argv += [f"--{flag}"] if value is True else [f"--{flag}", str(value)]
        inherited = environ_for("router" if self.kind == ROUTER else "worker", os.environ)
        environ = {key: value for key, value in inherited.items() if not key.startswith(self.not_inherited)}
        environ |= {"PYTHONUNBUFFERED": "1", **self.environ} | ({FAILPOINTS: failpoints} if failpoints else {})
        return ChildSpec(name, tuple(argv), environ)


@dataclass(frozen=True)
class VllmSpec:
    """How a vLLM server is started. It has no failpoints, and needs Redis only with Baton's connector."""

    kind: str
    program: VllmProgram
    model: VllmModel
    place: ServerPlace
    share: ServerShare = field(default_factory=ServerShare)
    start_timeout_s: ClassVar[float] = VLLM_START_TIMEOUT_S
    has_failpoints: ClassVar[bool] = False

    @property
    def worker_id(self) -> str:
        """The routers' name for it, the same at every start."""
        return self.place.router_address().partition("?")[0]

    def ranks(self, pid: int) -> list[int]:
        """The processes of its engine: all that are under the one with the HTTP port, which is the launcher's child,
        except Python's tracker of shared memory, which nobody misses.
        """
        under = [each for server in children_of(pid) for each in descendants_of(server)]
        return [each for each in under if b"resource_tracker" not in command_line(each)]

    def kill(self, child: Child) -> bool:
        """Kill all of its processes at once: its engine would live on without the one with the HTTP port."""
        runs = child.runs
        child.kill()
        return runs

    def child_spec(self, name: str, redis_url: str, failpoints: str) -> ChildSpec:
        """The spec of one start."""
        environ = {**os.environ, **without_spinning(), "BATON_REDIS_URL": redis_url}
        return server_spec(name, self.kind, self.program, self.model, self.place, self.share, environ)


@dataclass
class Process:
    """One start of a process. It is ``up`` while clients may count on it."""

    child: Child
    url: str = ""
    internal_url: str = ""
    #: Empty for a router.
    worker_id: str = ""
    up: bool = False
    failpoints: str = ""
    #: When it began to serve, seconds of ``time.monotonic``.
    served_s: float = 0.0
    #: Bytes of the log from earlier starts under the same name.
    log_from: int = 0
    #: Why it has ended, once it has ended.
    why: str = ""

    @property
    def pid(self) -> int:
        assert self.child.pid is not None
        return self.child.pid

    def has_died_as_armed(self) -> bool:
        """Whether its failpoint has killed it or one of its ranks, as a line of the failpoint in the log shows."""
        if not self.failpoints or self.child.log_path is None:
            return False
        last_words = f"failpoint {self.failpoints.partition('=')[0]}: kill"
        return last_words.encode() in self.child.log_path.read_bytes()[self.log_from :]


def make_child(name: str, spec: Startable, folder: Path, redis_url: str = "", failpoints: str = "") -> Child:
    """A child that is not started yet. Its log is in ``folder``."""
    return Child(spec.child_spec(name, redis_url, failpoints), folder / f"{name}.log", lambda *_: None)


@asynccontextmanager
async def alone(name: str, spec: Startable, folder: Path, stop_timeout_s: float = 0.0) -> AsyncIterator[Process]:
    """Run a worker without Redis and routers while inside. Raises ChildDiedError."""
    child = make_child(name, spec, folder)
    await child.start()
    try:
        yield Process(child, (await in_time(name, spec, child.ready())).url, up=True)
    finally:
        await child.stop(stop_timeout_s)


async def in_time(name: str, spec: Startable, serves: Awaitable[T]) -> T:
    """Await ``serves``, which shows that a process serves. Raises ChildDiedError after ``start_timeout_s``."""
    try:
        async with asyncio.timeout(spec.start_timeout_s):
            return await serves
    except TimeoutError:
        raise ChildDiedError(f"{name}: does not serve after {spec.start_timeout_s:g} s") from None


def command_line(pid: int) -> bytes:
    """The arguments of a process, each with a zero byte behind it; empty when it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def send(pid: int, number: signal.Signals) -> bool:
    """Send a signal to a process; returns False when there is no such process."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def pause(pid: int) -> None:
    """Stop the process (SIGSTOP). When this returns all its threads have stopped; until then they may still serve."""
    os.kill(pid, signal.SIGSTOP)
    while any(_can_run(thread) for thread in Path(f"/proc/{pid}/task").glob("*")):
        time.sleep(0.001)


def _can_run(thread: Path) -> bool:
    try:
        state = (thread / "stat").read_bytes().rpartition(b") ")[2][:1]
    except OSError:
        return False
    return state not in {b"T", b"t", b"Z", b"X"}


@contextmanager
def stopped(*pids: int) -> Iterator[Callable[[], None]]:
    """The processes stand still (SIGSTOP) until the returned function is called, or the block ends."""

    def go_on() -> None:
        for pid in pids:
            send(pid, signal.SIGCONT)

    try:
        for pid in pids:
            pause(pid)
        yield go_on
    finally:
        go_on()


def ranks_of(pid: int) -> list[int]:
    """The process ids of a worker's ranks, in order of rank; empty when the worker has ended."""
    found = {rank: child for child in children_of(pid) if (rank := rank_of(child)) is not None}
    return [found[rank] for rank in sorted(found)]


def rank_of(pid: int) -> int | None:
    """A rank's number, from the start parameters on its command line; None if there is no such process, or it is no
    rank.
    """
    try:
        spec = json.loads(command_line(pid).split(b"\0")[-2])
    except (IndexError, ValueError):
        return None
    rank = spec.get("rank", 0) if isinstance(spec, dict) else None
    return rank if isinstance(rank, int) else None
