"""What a benchmark found: its tables and plots, with the command that measured them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from pathlib import Path


class Table(msgspec.Struct, frozen=True):
    """A table of strings; ``columns`` has as many entries as each row."""

    title: str
    columns: list[str]
    rows: list[list[str]]


class Line(msgspec.Struct, frozen=True):
    """A line of a plot. ``low`` and ``high`` are the smallest and largest run at each x, or empty."""

    label: str
    x: list[float]
    y: list[float]
    low: list[float] = []
    high: list[float] = []


class Plot(msgspec.Struct, frozen=True):
    """A plot. ``name`` is the stem of its file: lower-case words with hyphens, different from those of all others."""

    name: str
    title: str
    x_label: str
    y_label: str
    lines: list[Line]
    log_x: bool = False
    log_y: bool = False


class Report(msgspec.Struct, frozen=True):
    """What one benchmark found.

    ``about`` are paragraphs of Markdown: what was measured against what, and how to read it. ``command`` is what
    somebody types to measure it again.
    """

    title: str
    command: str
    about: list[str]
    tables: list[Table] = []
    plots: list[Plot] = []

    def write(self, path: Path) -> None:
        """Write it as JSON."""
        path.write_bytes(msgspec.json.format(msgspec.json.encode(self)))


def read_report(path: Path) -> Report:
    """The report of a file. Raises ``msgspec.ValidationError`` if it is none, and OSError."""
    return msgspec.json.decode(path.read_bytes(), type=Report)
