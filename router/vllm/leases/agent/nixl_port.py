"""NIXL for notifications only: an agent that registers no memory. The only module of the router that imports NIXL.

NIXL is not documented as thread-safe, so one thread makes the agent, and only that thread calls it. Its progress thread
uses a whole core even when idle, so it is off, and the agent makes progress inside its calls.
"""

from __future__ import annotations

import contextlib

import nixl._api as nixl

from baton_serve.router.vllm.leases.agent.messages import (
    Connect,
    Connected,
    Forget,
    FromAgent,
    Notified,
    Notify,
    ToAgent,
)

#: Every exception that NIXL defines, and two that it lets through: a plugin is missing, a name is not UTF-8.
ERRORS: tuple[type[Exception], ...] = (
    *(one for one in vars(nixl.nixlBind).values() if isinstance(one, type) and issubclass(one, Exception)),
    RuntimeError,
    UnicodeDecodeError,
)


class Agent:
    """A NIXL agent over UCX, and the engines that it knows."""

    def __init__(self, name: str) -> None:
        """May raise any of ``ERRORS``."""
        config = nixl.nixl_agent_config(enable_prog_thread=False, backends=["UCX"])
        self._agent = nixl.nixl_agent(name, config)
        #: The names of the ranks of each connected engine.
        self._ranks: dict[str, list[str]] = {}

    def execute(self, command: ToAgent) -> FromAgent | None:
        """Returns the answer, if the command has one."""
        match command:
            case Connect():
                return Connected(command.engine_id, len(command.ranks), self._connect(command))
            case Notify():
                return Notified(self._notify(command))
            case Forget():
                self._forget(command.engine_id)
                return None

    def help_along(self) -> None:
        """Let the agent go on with what it has begun. No notification comes in: no other agent knows this one."""
        with contextlib.suppress(*ERRORS):  # of a peer that has died: its next notification says so
            self._agent.get_new_notifs()

    def _connect(self, command: Connect) -> str:
        """The error, empty when it worked."""
        self._forget(command.engine_id)
        names = self._ranks.setdefault(command.engine_id, [])
        try:
            for metadata in command.ranks:
                name = self._agent.add_remote_agent(metadata)
                names.append(name.decode() if isinstance(name, bytes) else str(name))
        except ERRORS as error:
            self._forget(command.engine_id)
            return _in_a_line(error)
        return ""

    def _notify(self, command: Notify) -> str:
        """The error, empty when every rank was sent everything. After an error the engine is disconnected."""
        if command.engine_id not in self._ranks:
            return "it is not connected"
        try:
            for name in self._ranks[command.engine_id]:
                for payload in command.payloads:
                    self._agent.send_notif(name, payload)
        except ERRORS as error:
            self._forget(command.engine_id)
            return _in_a_line(error)
        return ""

    def _forget(self, engine_id: str) -> None:
        for name in self._ranks.pop(engine_id, []):
            with contextlib.suppress(*ERRORS):  # it is gone already
                self._agent.remove_remote_agent(name)


def _in_a_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
