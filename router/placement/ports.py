"""What a policy is: an object with one method. Workers that must not be picked are left out before."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from router.placement.prompt import Prefilled, Prompt
    from router.pool import Worker

#: Listeners that are called with the engine id of a worker that left. A policy with state adds one, to forget it.
OnGone = list[Callable[[str], None]]


class PickPrefill(Protocol):
    """Chooses the worker that prefills. The request is sent to the one it returns, so it may take note of that."""

    def pick(self, workers: Sequence[Worker], prompt: Prompt) -> Worker:
        """One of ``workers``: at least one, all reachable and with room."""


class PickDecode(Protocol):
    """Chooses the worker that decodes, after the prompt's blocks exist."""

    def pick(self, workers: Sequence[Worker], prefilled: Prefilled) -> Worker:
        """One of ``workers``: at least one, all reachable, with room, and able to read the blocks."""


def key_of(worker: Worker) -> str:
    """The key of what a policy knows of a worker: a new engine is another one, of which nothing is known."""
    return worker.engine_id or worker.worker_id
