"""``baton drain`` and ``baton resume``: decide whether a worker gets new requests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from baton_serve.baton.operator.admin_client import AdminClient, AdminError, named

if TYPE_CHECKING:
    from baton_serve.baton.settings import AdminSettings


def parameters() -> list[click.Parameter]:
    """The arguments of both commands in addition to their settings."""
    return [click.Argument(["worker"], metavar="ID")]


def drain(settings: AdminSettings, worker: str) -> int:
    """Drain a worker: it finishes its requests and gets no new ones."""
    click.echo(_tell(settings, worker, "drain", "drains"))
    return 0


def resume(settings: AdminSettings, worker: str) -> int:
    """Let a worker get requests again."""
    click.echo(_tell(settings, worker, "resume", "takes requests"))
    return 0


def _tell(settings: AdminSettings, given: str, what: str, outcome: str) -> str:
    client = AdminClient(settings)
    workers, lost = client.workers_and_lost()
    worker_id = named(given, [*workers, *lost], "worker")
    if any(one["id"] == worker_id for one in lost):
        raise AdminError(f"worker {worker_id} is lost: it left without draining")
    told = client.tell_worker(worker_id, what)
    return f"{worker_id} {outcome}{'' if told else ' (the routers know; the worker cannot be told)'}"
