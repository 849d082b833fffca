"""How busy an engine is: written by the scheduler's thread in passing, and read by the thread that announces it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from baton_serve.core.protocol.worker import WorkerLoad

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


class EngineLoad:
    """Only ``now`` may be called in another thread than the scheduler's: it reads numbers, and waits for nobody."""

    def __init__(self, num_blocks: int, num_leases: Callable[[], int]) -> None:
        """``num_leases`` is called in the other thread as well."""
        self._num_blocks = num_blocks
        self._num_leases = num_leases
        self._free_blocks: Callable[[], int] = lambda: num_blocks
        self._running: set[str] = set()

    def bind(self, free_blocks: Callable[[], int]) -> None:
        """From now on ``free_blocks`` says how many blocks of the KV cache are free."""
        self._free_blocks = free_blocks

    def stepped(self, scheduled: Iterable[str]) -> None:
        """These requests are computed in the step that begins."""
        self._running = set(scheduled)

    def finished(self, request_id: str) -> None:
        """A request is over. After the last one there is no step that would show it."""
        self._running.discard(request_id)

    def now(self) -> WorkerLoad:
        """The load by the last step."""
        free = self._free_blocks()
        return WorkerLoad(
            running=len(self._running),
            free_blocks=free,
            pinned_blocks=max(0, self._num_blocks - free),
            leases=self._num_leases(),
        )
