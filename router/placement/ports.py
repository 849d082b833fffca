"""The interface of a policy: an object with one method. It is offered only workers that may be picked."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from router.placement.prompt import Prefilled, Prompt
    from router.pool import Worker

#: Listeners, called with the engine id of a worker that left. A policy with state adds one, to forget that worker.
OnGone = list[Callable[[str], None]]


class PickPrefill(Protocol):
    """Chooses the worker that prefills. The request is always sent to the returned one, so a policy may record it."""

    def pick(self, workers: Sequence[Worker], prompt: Prompt) -> Worker:
        """One of ``workers``: at least one, all reachable and with room."""


class PickDecode(Protocol):
    """Chooses the worker that decodes, after the prompt's blocks exist."""

    def pick(self, workers: Sequence[Worker], prefilled: Prefilled) -> Worker:
        """One of ``workers``: at least one, all reachable, with room, and able to read the blocks."""


def key_of(worker: Worker) -> str:
    """The key under which a policy keeps what it knows of a worker. A new engine has a new key: its cache is empty."""
    return worker.engine_id or worker.worker_id
