"""``baton workers``: the workers as a table or as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from baton_serve.baton.operator.admin_client import AdminClient
from baton_serve.baton.operator.tables import WORKER_COLUMNS, print_json, problem_lines, show, worker_rows

if TYPE_CHECKING:
    from baton_serve.baton.settings import AdminSettings


def parameters() -> list[click.Parameter]:
    """The options of the command in addition to its settings."""
    return [click.Option(["--json", "as_json"], is_flag=True, help="Print what the router answered, as JSON.")]


def workers(settings: AdminSettings, as_json: bool) -> int:
    """List the workers, lost ones as well, as the router that is asked sees them."""
    found, lost = AdminClient(settings).workers_and_lost()
    shown = [*found, *lost]
    if as_json:
        print_json({"workers": found, "lost": lost})
    elif shown:
        show(WORKER_COLUMNS, worker_rows(shown))
        for line in problem_lines(shown):
            click.echo(line)
    else:
        click.echo("no workers")
    return 0
