"""Announces this worker: who it is, and how busy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.protocol.worker import WorkerStatus
from core.registry.announcer import Announcer as EntryAnnouncer

if TYPE_CHECKING:
    from collections.abc import Callable

    from core.protocol.worker import WorkerLoad, WorkerRecord
    from core.registry.store import Registry


class Announcer(EntryAnnouncer[WorkerStatus]):
    """``start``, then ``changed`` whenever the load may have changed, then ``stop``."""

    def __init__(
        self,
        registry: Registry[WorkerStatus],
        record: WorkerRecord,
        load: Callable[[], WorkerLoad],
        *,
        interval_ms: int,
        ttl_ms: int,
    ) -> None:
        super().__init__(
            registry,
            record.worker_id,
            lambda: WorkerStatus(record=record, load=load()),
            interval_ms=interval_ms,
            ttl_ms=ttl_ms,
            who="worker",
        )
