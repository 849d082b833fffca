"""Which implementation of ``port.Engine`` belongs to which worker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from baton_serve.router.pool.kind import EngineKind, WorkerKind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from baton_serve.router.engines.port import Engine
    from baton_serve.router.pool import Worker


class Engines:
    """One object for each kind of engine."""

    def __init__(self, by_kind: Mapping[EngineKind, Engine]) -> None:
        self._by_kind = by_kind

    def of(self, worker: Worker) -> Engine:
        """The engine of this worker."""
        return self._by_kind[worker.kind.name]

    def of_kind(self, kind: WorkerKind) -> Engine:
        """The engine of all workers of a kind."""
        return self._by_kind[kind.name]
