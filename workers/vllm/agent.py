"""A worker's NIXL agent, whose reads can be made without the notification that vLLM attaches to them."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


def nixl_errors(agent: Any) -> tuple[type[Exception], ...]:
    """What this agent's NIXL raises: its errors have no common base, and are in another package on another device."""
    bindings = vars(sys.modules[type(agent).__module__].nixlBind)
    own = (error for name, error in bindings.items() if name.startswith("nixl") and name.endswith("Error"))
    return (*own, RuntimeError)  # a plugin of NIXL's is missing


class LateNotices:
    """An agent of whose reads the notifications can be held back. All else is the agent's own.

    P frees the blocks when it is notified, so it must not be before they have been read and checked.
    """

    def __init__(self, agent: Any) -> None:
        self._agent = agent
        self._held: list[bytes] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._agent, name)

    @contextmanager
    def held(self) -> Iterator[list[bytes]]:
        """Inside, transfers are made without their notifications, which the list has."""
        self._held = held = list[bytes]()
        try:
            yield held
        finally:
            self._held = None

    def make_prepped_xfer(self, *args: Any, notif_msg: bytes = b"", **kwargs: Any) -> int:
        """As NIXL's, but for the notification."""
        if self._held is not None and notif_msg:
            self._held.append(notif_msg)
            notif_msg = b""
        handle: int = self._agent.make_prepped_xfer(*args, notif_msg=notif_msg, **kwargs)
        return handle
