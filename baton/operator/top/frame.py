"""One frame of ``baton top``, out of fixed data, for a screen of any size from 80x24 on. Pure; needs rich."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.text import Text

from baton_serve.baton.operator.columns import Column, table_lines
from baton_serve.baton.operator.tables import NOTHING, duration, text, worker_state
from baton_serve.baton.operator.top.layout import bar, pack, sparkline
from baton_serve.core.protocol.ids import short, shorten

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import RenderableType

    from baton_serve.baton.operator.top.look import Item, Look, WorkerRow
    from baton_serve.baton.operator.top.rates import Rates

LIVE_STATES = ("queued", "prefilling", "held", "reading", "decoding")
#: States in which a request waits until a worker has room.
WAITING_STATES = ("queued", "held")
#: Columns and lines that a screen must have to show the history.
_WIDE, _HIGH = 120, 30
#: Each row: the least number of columns of the screen, and the characters of the bars of requests and of blocks.
_BARS = ((160, (16, 40)), (100, (10, 20)), (0, (8, 12)))

_STATE_STYLES = {"up": "green", "draining": "yellow", "down": "red", "lost": "red"}
#: The states of blocks in the order in which they are drawn.
_BLOCK_STYLES = {"pinned": "blue", "leased": "magenta", "cached": "cyan", "free": "bright_black"}
_WORKER_COLUMNS = (
    Column("WORKER", 0, least=12),
    Column("ROLE", 1),
    Column("STATE", 0),
    Column("", 5),
    Column("REQUESTS", 1),
    Column("BLOCKS", 3),
    Column("PINNED", 2),
    Column("LEASED", 2),
    Column("CACHED", 6),
    Column("FREE", 4),
    Column("LEASES", 7),
)
_REQUEST_COLUMNS = (
    Column("REQUEST", 0),
    Column("STATE", 0),
    Column("AGE", 1),
    Column("LEASE LEFT", 6),
    Column("TOKENS", 2),
    Column("P", 4, least=8),
    Column("D", 3, least=8),
    Column("PHASES", 8, least=24),
    Column("MODEL", 5, least=8),
    Column("USER", 7, least=8),
)


def frame(look: Look, url: str, problem: str = "", width: int = 80, height: int = 24) -> RenderableType:
    """The whole screen: at most ``height`` lines of at most ``width`` characters."""
    head = [*_speed(look.rates, url, width), *_counts(look, width), *_routers(look.routers, width)]
    if width >= _WIDE and height >= _HIGH:
        head += _history(look.rates, width)
    foot = [Text(text(problem), "bold red")] if problem else []
    for line in foot:
        line.truncate(width, overflow="ellipsis")
    names = shorten(str(row.item["id"]) for row in look.workers)
    bars = next(chars for columns, chars in _BARS if width >= columns)
    workers = table_lines(_WORKER_COLUMNS, [_worker(row, names, bars) for row in look.workers], width)
    ids = shorten(str(item["id"]) for item in look.requests)
    requests = table_lines(_REQUEST_COLUMNS, [_request(item, ids, names) for item in look.requests], width)
    room = height - len(head) - len(foot) - 2  # two empty lines
    above, below = share(room, len(workers), len(requests) + bool(look.num_hidden))
    body = [Text(), *cut(workers, above), Text(), *cut(requests, below, look.num_hidden)]
    return Group(*[*head, *body][: max(0, height - len(foot))], *foot)


def share(room: int, above: int, below: int) -> tuple[int, int]:
    """How many lines each of two tables gets: all its lines if there is room, else half of the room and what the other
    table does not use.
    """
    half = room // 2
    if above + below <= room:
        return above, below
    if above <= half:
        return above, room - above
    if below <= room - half:
        return room - below, below
    return half, room - half


def cut(lines: Sequence[Text], room: int, num_hidden: int = 0) -> list[Text]:
    """The table's head and as many rows as fit; the last line says how many are not shown."""
    num_more = num_hidden
    if len(lines) + bool(num_hidden) > room:
        num_more += len(lines) - max(room - 1, 1)
        lines = lines[: max(room - 1, 1)]
    return [*lines, Text(f"and {num_more} more", "dim")] if num_more else list(lines)


def _speed(rates: Rates, url: str, width: int) -> list[Text]:
    return pack(
        [
            Text(text(url), "bold"),
            f"{_number(rates.ended_per_s)} ended/s",
            Text(f"{_number(rates.failed_per_s)} failed/s", "bold red" if rates.failed_per_s else ""),
            f"{_number(rates.refused_per_s)} refused/s",
            f"{_number(rates.tokens_per_s)} tokens/s",
            f"TTFT p50 {duration(rates.ttft_p50_ms)}  p95 {duration(rates.ttft_p95_ms)}",
            f"ITL p50 {duration(rates.itl_p50_ms)}",
        ],
        width,
    )


def _counts(look: Look, width: int) -> list[Text]:
    shown = []
    for state in LIVE_STATES:
        oldest_ms = look.oldest_ms(state) if state in WAITING_STATES else None
        shown.append(f"{look.counts.get(state, 0)} {state}" + (f" (oldest {duration(oldest_ms)})" if oldest_ms else ""))
    return pack(shown, width)


def _routers(routers: Sequence[Item], width: int) -> list[Text]:
    """How many requests each router has, if there are several routers.

    A router that does not answer is red, with the reason.
    """
    if len(routers) < 2:
        return []
    parts = [Text("routers")]
    for item in routers:
        error, num_requests = item.get("error"), item.get("num_requests")
        said = f"no answer: {text(error)}" if error else f"{NOTHING if num_requests is None else num_requests} live"
        parts.append(Text(f"{short(text(item.get('id')))} {said}", "bold red" if error else ""))
    return pack(parts, width)


def _history(rates: Rates, width: int) -> list[Text]:
    """The last minutes of each rate, side by side, as far back as there is room for."""
    each = width // max(len(rates.series), 1)
    line = Text(no_wrap=True)
    for name, values in rates.series.items():
        line.append(f"{name} ").append(sparkline(values, each - len(name) - 4), "cyan").append("   ")
    line.rstrip()
    return [line] if any(rates.series.values()) else []


def _worker(row: WorkerRow, names: Mapping[str, str], bars: tuple[int, int]) -> list[str | Text]:
    item, (room_chars, block_chars) = row.item, bars
    occupied, limit = int(item.get("occupied") or 0), int(item.get("limit") or 0)
    state = worker_state(item)
    used = {style: float(row.blocks.get(name, 0)) for name, style in _BLOCK_STYLES.items() if name != "free"}
    return [
        names[str(item["id"])],
        text(item.get("role")),
        Text(state, _STATE_STYLES[state]),
        bar({"red" if occupied >= limit else "green": occupied}, limit, room_chars),
        f"{occupied}/{limit}",
        bar(used, sum(row.blocks.values()), block_chars) if row.blocks else NOTHING,
        *(str(row.blocks[name]) if row.blocks else NOTHING for name in _BLOCK_STYLES),
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
        *(_name(item.get(key), names) for key in ("prefill_worker", "decode_worker")),
        "  ".join(f"{text(state)} {duration(ms)}" for state, ms in spent.items()),
        text(item.get("model")),
        text(item.get("user")),
    ]


def _name(worker_id: object, names: Mapping[str, str]) -> str:
    """The short id of a worker, also of one that has left."""
    return NOTHING if worker_id is None else text(names.get(str(worker_id), short(str(worker_id))))


def _number(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.1f}"
