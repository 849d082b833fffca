"""Rows of words, bars and sparklines that fit into a width. Pure; needs rich."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from baton_serve.baton.operator.columns import Cell

_SPARKS = "▁▂▃▄▅▆▇█"


def pack(parts: Iterable[Cell], width: int) -> list[Text]:
    """The parts one after the other, in as many lines as they need. A part that is longer than a line is cut."""
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
    """A bar of ``width`` characters for ``total``: a piece for each of ``parts`` (style to amount), then a thin line.

    An amount above 0 gets at least one character while there are any left. Pieces beyond the width are cut.
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
    """The newest ``width`` values, one character each, from 0 to the highest value; None is a gap."""
    newest = values[-width:] if width > 0 else ()
    top = max((value for value in newest if value is not None), default=0)
    drawn = "".join(" " if value is None else _spark(value, top) for value in newest)
    return drawn.rjust(max(width, 0))


def _spark(value: float, top: float) -> str:
    return _SPARKS[min(len(_SPARKS) - 1, int(len(_SPARKS) * max(value, 0) / top))] if top > 0 else _SPARKS[0]
