"""Announces this worker in the registry: its record and its load."""

from __future__ import annotations

from typing import TYPE_CHECKING

from baton_serve.core.protocol.worker import WorkerStatus
from baton_serve.core.registry.announcer import Announcer

if TYPE_CHECKING:
    from collections.abc import Callable

    from baton_serve.core.protocol.worker import WorkerLoad, WorkerRecord
    from baton_serve.core.registry.store import Registry


def presence(
    registry: Registry[WorkerStatus],
    record: WorkerRecord,
    load: Callable[[], WorkerLoad],
    *,
    interval_ms: int,
    ttl_ms: int,
) -> Announcer[WorkerStatus]:
    """The worker's announcer. Call ``start`` once both ports answer, ``changed`` when the load changes, and ``stop`` to
    withdraw the entry.
    """
    return Announcer(
        registry,
        record.worker_id,
        lambda: WorkerStatus(record=record, load=load()),
        interval_ms=interval_ms,
        ttl_ms=ttl_ms,
        who="worker",
    )
