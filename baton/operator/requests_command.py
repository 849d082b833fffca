"""``baton requests``: the requests of all routers, live or ended, as a table or as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from baton_serve.baton.operator.admin_client import AdminClient
from baton_serve.baton.operator.tables import (
    ENDED_COLUMNS,
    REQUEST_COLUMNS,
    ended_rows,
    print_json,
    request_rows,
    show,
    text,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from baton_serve.baton.settings import AdminSettings

OUTCOMES = ("failed", "aborted", "done")
_ALL = "all"
_NONE = {
    None: "no live requests",
    _ALL: "no request is known that ended",
    "failed": "no request is known that failed",
    "aborted": "no request is known that was aborted",
    "done": "no request is known that is done",
}


def parameters() -> list[click.Parameter]:
    """The options of the command in addition to its settings."""
    return [
        click.Option(
            ["--ended"],
            is_flag=False,
            flag_value=_ALL,
            type=click.Choice([_ALL, *OUTCOMES]),
            help="List those that ended last, newest first, and why: all, or only failed, aborted or done ones.",
        ),
        click.Option(["--json", "as_json"], is_flag=True, help="Print what the router answered, as JSON."),
    ]


def requests(settings: AdminSettings, as_json: bool, ended: str | None) -> int:
    """List the live requests of all routers, or those that ended last."""
    client = AdminClient(settings)
    found = client.requests() if ended is None else client.ended(None if ended == _ALL else ended)
    silent = client.unreachable_routers
    if as_json:
        print_json({"requests" if ended is None else "ended": found, "unreachable_routers": silent})
    elif not found:
        click.echo(_NONE[ended])
    elif ended is None:
        show(REQUEST_COLUMNS, request_rows(found))
    else:
        show(ENDED_COLUMNS, ended_rows(found))
    warn_of_silent(silent)
    return 0


def warn_of_silent(router_ids: Sequence[str]) -> None:
    """Say on stderr which routers' requests are missing, so that the list is not taken for the whole."""
    for router_id in router_ids:
        click.echo(f"baton: router {text(router_id)} did not answer: its requests are missing here", err=True)
