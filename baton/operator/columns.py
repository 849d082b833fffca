"""Tables that fit into a width because they omit less important columns. Pure; needs rich."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    Cell = str | Text

GAP = "  "


@dataclass(frozen=True)
class Column:
    """A column. Where there is no room for all, the one of the highest ``rank`` is omitted first; rank 0 is always
    shown.
    """

    title: str
    rank: int
    #: Characters to which the cells of the column may be cut; None: they are shown whole or not at all.
    least: int | None = None


def table_lines(columns: Sequence[Column], rows: Sequence[Sequence[Cell]], width: int) -> list[Text]:
    """The head, and a line for each row, none longer than ``width``."""
    widths = fit(columns, rows, width)
    head = [Text(column.title, "bold") for column in columns]
    return [_line(cells, widths, width) for cells in (head, *rows)]


def least_width(columns: Sequence[Column], rows: Sequence[Sequence[Cell]]) -> int:
    """The least width at which the columns of rank 0 have room."""
    _, least = _sizes(columns, rows)
    return _width(size for column, size in zip(columns, least, strict=True) if column.rank == 0)


def fit(columns: Sequence[Column], rows: Sequence[Sequence[Cell]], width: int) -> dict[int, int]:
    """The width of each shown column, by the column's number."""
    whole, least = _sizes(columns, rows)
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


def _sizes(columns: Sequence[Column], rows: Sequence[Sequence[Cell]]) -> tuple[list[int], list[int]]:
    """Characters of each column when it is shown whole, and when it is cut."""
    whole = [max(map(_length, (column.title, *(row[i] for row in rows)))) for i, column in enumerate(columns)]
    least = [
        size if column.least is None else min(size, max(column.least, len(column.title)))
        for column, size in zip(columns, whole, strict=True)
    ]
    return whole, least


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
