"""``baton requests`` and ``baton workers``: what a router knows, as a table or as JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from baton.admin_client import AdminClient
from baton.tables import REQUEST_COLUMNS, WORKER_COLUMNS, request_rows, show, worker_rows

if TYPE_CHECKING:
    from baton.settings import AdminSettings


def parameters() -> list[click.Parameter]:
    """What the commands take beside the settings."""
    return [click.Option(["--json", "as_json"], is_flag=True, help="Print what the router answered, as JSON.")]


def requests(settings: AdminSettings, as_json: bool) -> int:
    """List the live requests of one router."""
    found = AdminClient(settings).requests()
    if as_json:
        _print_json({"requests": found})
    elif found:
        show(REQUEST_COLUMNS, request_rows(found))
    else:
        click.echo("no live requests")
    return 0


def workers(settings: AdminSettings, as_json: bool) -> int:
    """List the workers that one router knows."""
    found = AdminClient(settings).workers()
    if as_json:
        _print_json({"workers": found})
    elif found:
        show(WORKER_COLUMNS, worker_rows(found))
    else:
        click.echo("no workers")
    return 0


def _print_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2))
