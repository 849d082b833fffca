"""NIXL for notifications only: an agent that registers no memory. The only module of the router that imports NIXL.

NIXL is not documented as thread-safe, so one thread makes the agent, and only that thread calls it. Its progress thread
uses a whole core even when idle, so it is off, and the agent makes progress inside its calls.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import nixl._api as nixl

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Every exception that NIXL defines, and two that it lets through: a plugin is missing, a name is not UTF-8.
ERRORS: tuple[type[Exception], ...] = (
    *(one for one in vars(nixl.nixlBind).values() if isinstance(one, type) and issubclass(one, Exception)),
    RuntimeError,
    UnicodeDecodeError,
)


class NixlError(Exception):
    """A call of NIXL failed. The message is one line."""


class NotifyingAgent:
    """A NIXL agent over UCX. Every method may raise NixlError."""

    def __init__(self, name: str) -> None:
        with _translated():
            config = nixl.nixl_agent_config(enable_prog_thread=False, backends=["UCX"])
            self._agent = nixl.nixl_agent(name, config)

    def add(self, metadata: bytes) -> str:
        """Add a peer; returns its name."""
        with _translated():
            name = self._agent.add_remote_agent(metadata)
            return name.decode() if isinstance(name, bytes) else str(name)

    def remove(self, name: str) -> None:
        """Remove a peer."""
        with _translated():
            self._agent.remove_remote_agent(name)

    def notify(self, name: str, payload: bytes) -> None:
        """Hand a notification for a peer to the network."""
        with _translated():
            self._agent.send_notif(name, payload)

    def progress(self) -> None:
        """Let the agent go on with what it has begun. Nobody knows this agent, so nothing comes in."""
        with _translated():
            self._agent.get_new_notifs()


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except ERRORS as error:
        raise NixlError(" ".join(f"{type(error).__name__}: {error}".split())) from error
