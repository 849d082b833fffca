"""The thread that owns the NIXL agent."""

from __future__ import annotations

import contextlib
import queue
import secrets
import sys
import threading
import time
from typing import TYPE_CHECKING

import msgspec

from baton_serve.router.vllm.leases.agent.messages import AgentReady, Connected, Forget, FromAgent, Notified, Notify

if TYPE_CHECKING:
    from collections.abc import Callable

    from baton_serve.router.vllm.leases.agent.nixl_port import NotifyingAgent

#: After a call that sends something, the agent is helped along for so many seconds. NIXL tells neither when it needs
#: help nor when it has finished.
PROGRESS_S = 1.0
#: The pauses meanwhile, seconds: the first, each doubled, and the longest.
FIRST_PAUSE_S = 0.0005
LONGEST_PAUSE_S = 0.05
#: Seconds of help for what was sent last before the end.
LAST_PROGRESS_S = 0.02


class Add(msgspec.Struct, frozen=True):
    """Know an engine by the NIXL metadata of its ranks. Emits ``Connected``."""

    engine_id: str
    ranks: list[bytes]


class AgentThread:
    """Executes commands in order; answers by ``emit``, which is called in this thread."""

    def __init__(self, emit: Callable[[FromAgent], None]) -> None:
        self._emit = emit
        self._commands: queue.SimpleQueue[Add | Notify | Forget | None] = queue.SimpleQueue()
        #: The names of the ranks of each connected engine.
        self._peers: dict[str, list[str]] = {}
        self._thread = threading.Thread(target=self._run, name="nixl", daemon=True)

    def start(self) -> None:
        """Make the agent; then ``AgentReady`` is emitted, once."""
        self._thread.start()

    def submit(self, command: Add | Notify | Forget) -> None:
        """Queue a command; may be called from any thread."""
        self._commands.put(command)

    def finish(self, timeout_s: float) -> None:
        """Execute what is queued, and end; wait ``timeout_s`` for it at most."""
        self._commands.put(None)
        self._thread.join(timeout_s)

    def _run(self) -> None:
        agent, error = _make_agent()
        self._emit(AgentReady(error))
        if agent is None:
            return
        pause_s, until = FIRST_PAUSE_S, time.monotonic()
        while True:
            is_quiet = time.monotonic() >= until
            try:
                command = self._commands.get(timeout=None if is_quiet else pause_s)
            except queue.Empty:
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            else:
                if command is None:
                    break
                self._execute(agent, command)
                pause_s, until = FIRST_PAUSE_S, time.monotonic() + PROGRESS_S
            _help_along(agent)
        until = time.monotonic() + LAST_PROGRESS_S
        while time.monotonic() < until:
            _help_along(agent)
            time.sleep(FIRST_PAUSE_S)

    def _execute(self, agent: NotifyingAgent, command: Add | Notify | Forget) -> None:
        match command:
            case Add():
                self._emit(Connected(command.engine_id, len(command.ranks), self._add(agent, command)))
            case Notify():
                self._emit(Notified(command.number, self._notify(agent, command)))
            case Forget():
                self._forget(agent, command.engine_id)

    def _add(self, agent: NotifyingAgent, command: Add) -> str:
        """The error, empty when it worked."""
        self._forget(agent, command.engine_id)
        names = self._peers.setdefault(command.engine_id, [])
        try:
            for metadata in command.ranks:
                names.append(agent.add(metadata))
        except _nixl_error() as error:
            self._forget(agent, command.engine_id)
            return str(error)
        return ""

    def _notify(self, agent: NotifyingAgent, command: Notify) -> str:
        """The error, empty when every rank was sent everything. After an error the engine is disconnected."""
        names = self._peers.get(command.engine_id, [])
        if len(names) != command.num_ranks:
            return f"{len(names)} of its {command.num_ranks} ranks are connected"
        try:
            for name in names:
                for payload in command.payloads:
                    agent.notify(name, payload)
        except _nixl_error() as error:
            self._forget(agent, command.engine_id)
            return str(error)
        return ""

    def _forget(self, agent: NotifyingAgent, engine_id: str) -> None:
        for name in self._peers.pop(engine_id, []):
            with contextlib.suppress(_nixl_error()):  # it is gone already
                agent.remove(name)


def _make_agent() -> tuple[NotifyingAgent | None, str]:
    """The agent, or why there is none."""
    # NIXL imports torch, if it is there, to choose its build by torch's CUDA. That took 2 s and 190 MB, and any build
    # can send notifications. None has NIXL find no torch.
    sys.modules.setdefault("torch", None)  # type: ignore[arg-type]
    try:
        from baton_serve.router.vllm.leases.agent.nixl_port import NotifyingAgent
    except Exception as error:  # noqa: BLE001 (the next process would meet it as well)
        return None, f"nixl cannot be imported: {error}"
    try:
        return NotifyingAgent(f"baton-router-{secrets.token_hex(8)}"), ""
    except Exception as error:  # noqa: BLE001 (as above)
        return None, f"NIXL cannot start: {error}"


def _help_along(agent: NotifyingAgent) -> None:
    with contextlib.suppress(_nixl_error()):  # of a peer that has died: its next notification says so
        agent.progress()


def _nixl_error() -> type[Exception]:
    """NIXL's error, which exists once NIXL has been imported."""
    from baton_serve.router.vllm.leases.agent.nixl_port import NixlError

    return NixlError
