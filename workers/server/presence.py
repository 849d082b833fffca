"""Announces this worker in the registry: who it is, and how busy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.protocol.worker import WorkerStatus
from core.registry.announcer import Announcer

if TYPE_CHECKING:
    from collections.abc import Callable

    from core.protocol.worker import WorkerLoad, WorkerRecord
    from core.registry.store import Registry


def presence(
    registry: Registry[WorkerStatus],
    record: WorkerRecord,
    load: Callable[[], WorkerLoad],
    *,
    interval_ms: int,
    ttl_ms: int,
) -> Announcer[WorkerStatus]:
    """``start`` it once both ports answer, and call ``changed`` when the load changes; ``stop`` withdraws the entry."""
    return Announcer(
        registry,
        record.worker_id,
        lambda: WorkerStatus(record=record, load=load()),
        interval_ms=interval_ms,
        ttl_ms=ttl_ms,
        who="worker",
    )
