"""Requests and workers as tables. On a terminal a row is one line: columns without room are omitted, except ids and
states. Without a terminal everything is printed whole.
"""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from baton_serve.baton.operator.columns import Column, least_width, table_lines
from baton_serve.core.protocol.ids import shorten

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Item = Mapping[str, Any]

NOTHING = "-"
#: Characters of an IPv4 address with its port, which is the id of a worker that was added by URL.
_ID_CHARS = 21

REQUEST_COLUMNS = (
    Column("ID", 0),
    Column("STATE", 0),
    Column("AGE", 1),
    Column("P", 2, least=_ID_CHARS),
    Column("D", 2, least=_ID_CHARS),
    Column("LEASE LEFT", 6),
    Column("TOKENS", 3),
    Column("ROUTER", 7),
    Column("MODEL", 4, least=8),
    Column("USER", 5, least=8),
)
ENDED_COLUMNS = (
    Column("ID", 0),
    Column("OUTCOME", 0),
    Column("ENDED IN", 3),
    Column("AGO", 2),
    Column("TOOK", 4),
    Column("P", 5, least=_ID_CHARS),
    Column("D", 5, least=_ID_CHARS),
    Column("TOKENS", 6),
    Column("ROUTER", 9),
    Column("MODEL", 8, least=32),
    Column("USER", 7, least=8),
    Column("WHY", 1, least=30),
)
WORKER_COLUMNS = (
    Column("ID", 0),
    Column("NAME", 1),
    Column("ROLE", 1),
    Column("STATE", 0),
    Column("ENGINE", 3),
    Column("REQUESTS", 1),
    Column("RUNNING", 6),
    Column("WAITING", 6),
    Column("READING", 7),
    Column("FREE", 2),
    Column("CACHED", 2),
    Column("PINNED", 4),
    Column("LEASED", 4),
    Column("LEASES", 5),
    Column("MODELS", 3, least=10),
)


class _Names:
    """Shortens the ids in a listing: those of the requests, of their routers and of their workers."""

    def __init__(self, requests: Sequence[Item]) -> None:
        self._ids = shorten(str(request["id"]) for request in requests)
        self._routers = shorten(str(request["router"]) for request in requests if request.get("router"))
        self._places = shorten(str(request[key]) for request in requests for key in _PLACES if request.get(key))

    def id_of(self, request: Item) -> str:
        """The id of the request."""
        return self._ids[str(request["id"])]

    def router_of(self, request: Item) -> str:
        """The id of the router that has the request."""
        return self._routers.get(str(request.get("router")), NOTHING)

    def places_of(self, request: Item) -> list[str]:
        """The ids of the request's P and D."""
        return [self._places.get(str(request.get(key)), NOTHING) for key in _PLACES]


def request_rows(requests: Sequence[Item]) -> list[list[str]]:
    """One row per request, in the order given, under ``REQUEST_COLUMNS``."""
    names = _Names(requests)
    return [
        [
            names.id_of(request),
            text(request.get("state")),
            duration(request.get("age_ms")),
            *names.places_of(request),
            duration(request.get("lease_remaining_ms")),
            text(request.get("num_tokens")),
            names.router_of(request),
            text(request.get("model")),
            text(request.get("user")),
        ]
        for request in requests
    ]


def ended_rows(requests: Sequence[Item]) -> list[list[str]]:
    """One row per request that is over, in the order given, under ``ENDED_COLUMNS``."""
    names = _Names(requests)
    return [
        [
            names.id_of(request),
            text(request.get("outcome")),
            text(request.get("ended_in")),
            duration(request.get("ended_ms_ago")),
            duration(request.get("total_ms")),
            *names.places_of(request),
            text(request.get("num_tokens")),
            names.router_of(request),
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
            text(worker.get("name")),
            text(worker.get("role")),
            worker_state(worker),
            text(" ".join(str(worker[key]) for key in ("kind", "version") if worker.get(key))),
            f"{text(worker.get('occupied'))}/{text(worker.get('limit'))}",
            *(text(worker.get(key)) for key in ("running", "waiting", "reading")),
            *(text(worker.get(f"{state}_blocks")) for state in BLOCK_STATES),
            text(worker.get("leases")),
            text(", ".join(map(str, worker.get("models") or ()))),
        ]
        for worker in workers
    ]


def problem_lines(workers: Sequence[Item]) -> list[str]:
    """One line per worker with which something is wrong: what it is, and what to change."""
    ids = shorten(str(worker["id"]) for worker in workers)
    problems = ((ids[str(worker["id"])], worker.get("name"), _problem(worker)) for worker in workers)
    return [
        f"{f'{text(name)} ' if name else ''}{shown}: {text(problem)}" for shown, name, problem in problems if problem
    ]


def _problem(worker: Item) -> str:
    if not _is_lost(worker):
        return str(worker.get("problem") or "")
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(worker["gone_at"]))
    had = f"{text(worker.get('running'))} running requests and {text(worker.get('leased_blocks'))} leased blocks"
    return f"It left without draining at {since}. Last announced: {had}."


def _is_lost(worker: Item) -> bool:
    return isinstance(worker.get("gone_at"), int | float)


BLOCK_STATES = ("free", "cached", "pinned", "leased")
_PLACES = ("prefill_worker", "decode_worker")


def worker_state(worker: Item) -> str:
    """The state of a worker: ``lost``, ``down``, ``draining`` or ``up``."""
    if _is_lost(worker):
        return "lost"
    if not worker.get("healthy"):
        return "down"
    return "draining" if worker.get("draining") else "up"


def duration(milliseconds: Any) -> str:
    """A time for people: ``12 ms``, ``3.4 s``, ``5 min``."""
    if not isinstance(milliseconds, int | float):
        return NOTHING
    if milliseconds < 1000:
        return f"{milliseconds:.0f} ms"
    return f"{milliseconds / 1e3:.1f} s" if milliseconds < 120_000 else f"{milliseconds / 60e3:.0f} min"


def text(value: Any) -> str:
    """A value as the text of a cell. Control characters are replaced: names of models and users come from clients."""
    shown = "" if value is None else str(value)
    return "".join(char if char.isprintable() else "?" for char in shown) or NOTHING


def print_json(value: Any) -> None:
    """Print a value as JSON, for programs."""
    click.echo(json.dumps(value, indent=2))


def show(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    """Print a table to standard output."""
    console = Console()
    for line in table_lines(columns, rows, _width(console, columns, rows)):
        console.print(line, soft_wrap=True)


def _width(console: Console, columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> int:
    """The terminal's width. Where ids and states have no room in it, returns their width, and the terminal folds the
    lines.
    """
    return max(console.width, least_width(columns, rows)) if sys.stdout.isatty() else sys.maxsize
