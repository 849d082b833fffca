"""What fits a screen: rows of words, and tables whose less important columns give way. Pure; needs rich."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    Cell = str | Text

GAP = "  "
_SPARKS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class Column:
    """Where there is no room for all, the highest ``rank`` goes first, and 0 never does."""

    title: str
    rank: int
    #: Characters to which it may be cut; None: it is shown whole or not at all.
    least: int | None = None


def table_lines(columns: Sequence[Column], rows: Sequence[Sequence[Cell]], width: int) -> list[Text]:
    """A head and a line per row, none longer than ``width``."""
    widths = fit(columns, rows, width)
    head = [Text(column.title, "bold") for column in columns]
    return [_line(cells, widths, width) for cells in (head, *rows)]


def fit(columns: Sequence[Column], rows: Sequence[Sequence[Cell]], width: int) -> dict[int, int]:
    """The columns that are shown, by their number, and how wide each is."""
    whole = [max(map(_length, (column.title, *(row[i] for row in rows)))) for i, column in enumerate(columns)]
    least = [
        size if column.least is None else min(size, max(column.least, len(column.title)))
        for column, size in zip(columns, whole, strict=True)
    ]
    by_rank = sorted(range(len(columns)), key=lambda i: columns[i].rank)
    shown = list(by_rank)
    while columns[shown[-1]].rank > 0 and _width(least[i] for i in shown) > width:
        shown.pop()
    left = width - _width(least[i] for i in shown)
    widths = {}
    for i in shown:
        more = max(0, min(left, whole[i] - least[i]))
        widths[i] = least[i] + more
        left -= more
    return {i: widths[i] for i in sorted(widths)}


def pack(parts: Iterable[Cell], width: int) -> list[Text]:
    """The parts one after the other, in as many lines as they need; what is longer than a line is cut."""
    lines: list[Text] = []
    for part in parts:
        piece = Text(part) if isinstance(part, str) else part
        if lines and lines[-1].cell_len + 3 + piece.cell_len <= width:
            lines[-1].append("   ").append_text(piece)
        else:
            lines.append(piece.copy())
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return lines


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


def sparkline(values: Sequence[float | None], width: int) -> str:
    """The newest ``width`` values, one character each, from 0 to the highest; a gap where nothing was measured."""
    newest = values[-width:] if width > 0 else ()
    top = max((value for value in newest if value is not None), default=0)
    drawn = "".join(" " if value is None else _spark(value, top) for value in newest)
    return drawn.rjust(max(width, 0))


def _spark(value: float, top: float) -> str:
    return _SPARKS[min(len(_SPARKS) - 1, int(len(_SPARKS) * max(value, 0) / top))] if top > 0 else _SPARKS[0]


def _line(cells: Sequence[Cell], widths: Mapping[int, int], width: int) -> Text:
    made = Text(no_wrap=True)
    for number, (i, size) in enumerate(widths.items()):
        given = cells[i]
        cell = Text(given) if isinstance(given, str) else given.copy()
        cell.truncate(size, overflow="ellipsis", pad=True)
        made.append(GAP if number else "").append_text(cell)
    made.rstrip()
    made.truncate(width, overflow="ellipsis")
    return made


def _length(cell: Cell) -> int:
    return cell_len(cell) if isinstance(cell, str) else cell.cell_len


def _width(sizes: Iterable[int]) -> int:
    each = list(sizes)
    return sum(each) + len(GAP) * (len(each) - 1)
