"""``baton requests`` and ``baton workers``: what routers know, as a table or as JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from baton.admin_client import AdminClient
from baton.tables import REQUEST_COLUMNS, WORKER_COLUMNS, request_rows, show, text, worker_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from baton.settings import AdminSettings


def parameters() -> list[click.Parameter]:
    """What the commands take beside the settings."""
    return [click.Option(["--json", "as_json"], is_flag=True, help="Print what the router answered, as JSON.")]


def requests(settings: AdminSettings, as_json: bool) -> int:
    """List the live requests of all routers."""
    client = AdminClient(settings)
    found = client.requests()
    silent = client.unreachable_routers
    if as_json:
        _print_json({"requests": found, "unreachable_routers": silent})
    elif found:
        show(REQUEST_COLUMNS, request_rows(found))
    else:
        click.echo("no live requests")
    warn_of_silent(silent)
    return 0


def workers(settings: AdminSettings, as_json: bool) -> int:
    """List the workers, as the router that is asked sees them."""
    found = AdminClient(settings).workers()
    if as_json:
        _print_json({"workers": found})
    elif found:
        show(WORKER_COLUMNS, worker_rows(found))
    else:
        click.echo("no workers")
    return 0


def warn_of_silent(router_ids: Sequence[str]) -> None:
    """Say on stderr whose share is missing, so that nobody takes half a list for the whole."""
    for router_id in router_ids:
        click.echo(f"baton: router {text(router_id)} did not answer: its requests are missing here", err=True)


def _print_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2))
