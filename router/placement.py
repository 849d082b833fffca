"""Which worker is next. A policy is an object with one method; the pool has already left out who must not be picked.

To add one: implement the method, name it in ``PREFILL_POLICIES`` or ``DECODE_POLICIES`` and in the setting.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence, Set

    from router.workers import Worker


class Prompt(msgspec.Struct, frozen=True):
    """What a policy may know about a request before prefill."""

    model: str
    num_bytes: int
    user: str


class Prefilled(msgspec.Struct, frozen=True):
    """What a policy may know about a request after prefill: ``source`` holds its blocks, None if nobody does."""

    prompt: Prompt
    source: Worker | None
    num_tokens: int


class PickPrefill(Protocol):
    """Chooses the worker that prefills."""

    def pick(self, workers: Sequence[Worker], prompt: Prompt) -> Worker:
        """One of ``workers``: at least one, all reachable and with room."""


class PickDecode(Protocol):
    """Chooses the worker that decodes, after the prompt's blocks exist."""

    def pick(self, workers: Sequence[Worker], prefilled: Prefilled) -> Worker:
        """One of ``workers``: at least one, all reachable, with room, and able to read the blocks."""


class LeastLoaded:
    """The worker with the smallest share of its room in use; equal ones take turns. For prefill and for decode."""

    def __init__(self) -> None:
        self._turn = 0

    def pick(self, workers: Sequence[Worker], _about: Prompt | Prefilled) -> Worker:
        """See ``PickPrefill`` and ``PickDecode``."""
        if len(workers) == 1:
            return workers[0]
        self._turn += 1
        shift = self._turn % len(workers)
        order = (*workers[shift:], *workers[:shift])
        return min(order, key=_share)


def _share(worker: Worker) -> float:
    return worker.occupied / worker.limit


PREFILL_POLICIES: dict[str, Callable[[], PickPrefill]] = {"least_loaded": LeastLoaded}
DECODE_POLICIES: dict[str, Callable[[], PickDecode]] = {"least_loaded": LeastLoaded}


def available(workers: Sequence[Worker], excluded: Set[Worker]) -> list[Worker]:
    """Those with room now. Who failed this request before is left out as long as somebody else is reachable."""
    reachable = [worker for worker in workers if worker.takes_work]
    if excluded:
        reachable = [worker for worker in reachable if worker not in excluded] or reachable
    return [worker for worker in reachable if worker.room > 0]
