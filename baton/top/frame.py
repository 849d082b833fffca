"""One frame of ``baton top``, out of fixed data. Pure; needs rich."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.text import Text

from baton.tables import NOTHING, duration, table, text, worker_state
from protocol.ids import shorten

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import RenderableType

    from baton.top.look import Item, Look, WorkerRow
    from baton.top.rates import Rates

LIVE_STATES = ("queued", "prefilling", "held", "reading", "decoding")
#: States in which a request waits for somebody to have room.
WAITING_STATES = ("queued", "held")
ROOM_CHARS, BLOCK_CHARS = 10, 20
#: Lines of a frame that are neither a worker nor a request.
_FIXED_LINES = 8

_STATE_STYLES = {"up": "green", "draining": "yellow", "down": "red"}
#: In the order they are drawn.
_BLOCK_STYLES = {"pinned": "blue", "leased": "magenta", "cached": "cyan", "free": "bright_black"}
_WORKER_COLUMNS = ("WORKER", "ROLE", "STATE", "REQUESTS", "", "BLOCKS", "", "LEASES")
_REQUEST_COLUMNS = ("REQUEST", "STATE", "AGE", "LEASE LEFT", "TOKENS", "P", "D", "PHASES", "MODEL")


def frame(look: Look, rates: Rates, url: str, problem: str = "", height: int = 40) -> RenderableType:
    """The whole screen, at most ``height`` lines where the workers leave room for at least one request.

    ``rates`` are of the router at ``url``; those of all routers, where the look has them, are shown instead.
    """
    lines: list[RenderableType] = [_speed(look.rates or rates, url), _counts(look)]
    routers = [_routers(look.routers)] if len(look.routers) > 1 else []
    lines += [*routers, Text()]
    names = shorten(str(row.item["id"]) for row in look.workers)
    lines.append(table(_WORKER_COLUMNS, [_worker(row, names) for row in look.workers], one_line=True))
    room = max(1, height - _FIXED_LINES - len(routers) - len(look.workers))
    shown = look.requests[:room]
    ids = shorten(str(item["id"]) for item in look.requests)
    lines += [Text(), table(_REQUEST_COLUMNS, [_request(item, ids, names) for item in shown], one_line=True)]
    num_more = len(look.requests) - len(shown) + look.num_hidden
    if num_more:
        lines.append(Text(f"and {num_more} more", style="dim"))
    if problem:
        lines.append(Text(text(problem), "bold red", no_wrap=True, overflow="ellipsis"))
    return Group(*lines)


def bar(parts: Mapping[str, float], total: float, width: int) -> Text:
    """``width`` characters, divided as ``parts`` (style to amount) are of ``total``; the rest is a thin line.

    What is more than nothing gets a character as long as there are any; too much is cut at the end.
    """
    made = Text()
    left = width
    for style, amount in parts.items():
        share = round(width * amount / total) if total > 0 else 0
        chars = min(left, max(share, int(amount > 0)))
        made.append("█" * chars, style)
        left -= chars
    return made.append("─" * left, "bright_black")


def _speed(rates: Rates, url: str) -> Text:
    shown = [
        f"{_number(rates.requests_per_s)} requests/s",
        f"{_number(rates.failed_per_s)} failed/s",
        f"{_number(rates.chunks_per_s)} chunks/s",
        f"TTFT p50 {_seconds(rates.ttft_p50_s)}  p95 {_seconds(rates.ttft_p95_s)}",
        f"ITL p50 {_seconds(rates.itl_p50_s)}",
    ]
    return Text.assemble((f"{text(url)}  ", "bold"), "   ".join(shown), no_wrap=True, overflow="ellipsis")


def _counts(look: Look) -> Text:
    shown = []
    for state in LIVE_STATES:
        oldest_ms = look.oldest_ms(state) if state in WAITING_STATES else None
        shown.append(f"{look.counts.get(state, 0)} {state}" + (f" (oldest {duration(oldest_ms)})" if oldest_ms else ""))
    return Text("   ".join(shown), no_wrap=True, overflow="ellipsis")


def _routers(routers: Sequence[Item]) -> Text:
    """How many requests each has; in red who does not answer, and why."""
    line = Text("routers  ", no_wrap=True, overflow="ellipsis")
    for item in routers:
        error, num_requests = item.get("error"), item.get("num_requests")
        said = f"no answer: {text(error)}" if error else f"{NOTHING if num_requests is None else num_requests} live"
        line.append(f"{text(item.get('id'))} {said}   ", "bold red" if error else "")
    return line


def _worker(row: WorkerRow, names: Mapping[str, str]) -> list[str | Text]:
    item = row.item
    occupied, limit = int(item.get("occupied") or 0), int(item.get("limit") or 0)
    state = worker_state(item)
    used = {style: float(row.blocks.get(name, 0)) for name, style in _BLOCK_STYLES.items() if name != "free"}
    return [
        names[str(item["id"])],
        text(item.get("role")),
        Text(state, _STATE_STYLES[state]),
        bar({"red" if occupied >= limit else "green": occupied}, limit, ROOM_CHARS),
        f"{occupied}/{limit}",
        bar(used, sum(row.blocks.values()), BLOCK_CHARS) if row.blocks else NOTHING,
        " ".join(f"{row.blocks[name]} {name}" for name in _BLOCK_STYLES) if row.blocks else "",
        text(item.get("leases")),
    ]


def _request(item: Item, ids: Mapping[str, str], names: Mapping[str, str]) -> list[str | Text]:
    spent = {**(item.get("phases_ms") or {}), str(item.get("state")): item["in_state_ms"]}
    return [
        ids[str(item["id"])],
        text(item.get("state")),
        duration(item.get("age_ms")),
        duration(item.get("lease_remaining_ms")),
        text(item.get("num_tokens")),
        *(text(names.get(str(item.get(key)), item.get(key))) for key in ("prefill_worker", "decode_worker")),
        "  ".join(f"{text(state)} {duration(ms)}" for state, ms in spent.items()),
        text(item.get("model")),
    ]


def _number(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.1f}"


def _seconds(value: float | None) -> str:
    return duration(None if value is None else value * 1e3)
