"""Requests and workers as tables. The rows are pure; printing needs rich."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import click

from protocol.ids import shorten

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.table import Table

    Item = Mapping[str, Any]

NOTHING = "-"
#: Wide enough for every column when nobody reads along: a pipe has no width.
_PIPE_COLUMNS = 400

REQUEST_COLUMNS = ("ID", "STATE", "AGE", "P", "D", "LEASE LEFT", "TOKENS", "ROUTER", "MODEL", "USER")
ENDED_COLUMNS = ("ID", "OUTCOME", "ENDED IN", "AGO", "TOOK", "P", "D", "TOKENS", "ROUTER", "MODEL", "USER", "WHY")
WORKER_COLUMNS = ("ID", "ROLE", "STATE", "REQUESTS", "RUNNING", "WAITING", "READING", "LEASES", "BLOCKS", "MODELS")


def request_rows(requests: Sequence[Item]) -> list[list[str]]:
    """One row per request, in the order given, under ``REQUEST_COLUMNS``."""
    ids = shorten(str(request["id"]) for request in requests)
    routers = shorten(str(request["router"]) for request in requests if request.get("router"))
    places = shorten(str(request[key]) for request in requests for key in _PLACES if request.get(key))
    return [
        [
            ids[str(request["id"])],
            text(request.get("state")),
            duration(request.get("age_ms")),
            *(places.get(str(request.get(key)), NOTHING) for key in _PLACES),
            duration(request.get("lease_remaining_ms")),
            text(request.get("num_tokens")),
            routers.get(str(request.get("router")), NOTHING),
            text(request.get("model")),
            text(request.get("user")),
        ]
        for request in requests
    ]


def ended_rows(requests: Sequence[Item]) -> list[list[str]]:
    """One row per request that is over, in the order given, under ``ENDED_COLUMNS``."""
    ids = shorten(str(request["id"]) for request in requests)
    routers = shorten(str(request["router"]) for request in requests if request.get("router"))
    places = shorten(str(request[key]) for request in requests for key in _PLACES if request.get(key))
    return [
        [
            ids[str(request["id"])],
            text(request.get("outcome")),
            text(request.get("ended_in")),
            duration(request.get("ended_ms_ago")),
            duration(request.get("total_ms")),
            *(places.get(str(request.get(key)), NOTHING) for key in _PLACES),
            text(request.get("num_tokens")),
            routers.get(str(request.get("router")), NOTHING),
            text(request.get("model")),
            text(request.get("user")),
            text(": ".join(str(request[key]) for key in ("code", "error") if request.get(key))),
        ]
        for request in requests
    ]


def worker_rows(workers: Sequence[Item]) -> list[list[str]]:
    """One row per worker, in the order given, under ``WORKER_COLUMNS``."""
    ids = shorten(str(worker["id"]) for worker in workers)
    return [
        [
            ids[str(worker["id"])],
            text(worker.get("role")),
            worker_state(worker),
            f"{text(worker.get('occupied'))}/{text(worker.get('limit'))}",
            *(text(worker.get(key)) for key in ("running", "waiting", "reading", "leases")),
            " ".join(f"{text(worker.get(f'{state}_blocks'))} {state}" for state in BLOCK_STATES),
            text(", ".join(map(str, worker.get("models") or ()))),
        ]
        for worker in workers
    ]


BLOCK_STATES = ("free", "cached", "pinned", "leased")
_PLACES = ("prefill_worker", "decode_worker")


def worker_state(worker: Item) -> str:
    """``down``, ``draining`` or ``up``."""
    if not worker.get("healthy"):
        return "down"
    return "draining" if worker.get("draining") else "up"


def duration(milliseconds: Any) -> str:
    """A time as a person reads it: ``12 ms``, ``3.4 s``, ``5 min``."""
    if not isinstance(milliseconds, int | float):
        return NOTHING
    if milliseconds < 1000:
        return f"{milliseconds:.0f} ms"
    return f"{milliseconds / 1e3:.1f} s" if milliseconds < 120_000 else f"{milliseconds / 60e3:.0f} min"


def text(value: Any) -> str:
    """A value for a cell. What clients sent (models, users) must not steer the terminal that shows it."""
    shown = "" if value is None else str(value)
    return "".join(char if char.isprintable() else "?" for char in shown) or NOTHING


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """For rich; what a cell says is shown as it is, never taken for markup."""
    from rich.table import Table
    from rich.text import Text

    made = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for index, column in enumerate(columns):
        made.add_column(column, no_wrap=index == 0)
    for row in rows:
        made.add_row(*map(Text, row))
    return made


def print_json(value: Any) -> None:
    """For programs."""
    click.echo(json.dumps(value, indent=2))


def show(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table to standard output."""
    from rich.console import Console

    Console(width=None if sys.stdout.isatty() else _PIPE_COLUMNS).print(_table(columns, rows))
