"""What a benchmark found: its tables and plots, with the command that measured them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

import msgspec


class Table(msgspec.Struct, frozen=True):
    """A table of strings; ``columns`` has as many entries as each row."""

    title: str
    columns: list[str]
    rows: list[list[str]]

    def markdown(self) -> str:
        """The table with its title above. All columns but the first are right-aligned."""
        rule = ["---", *["---:"] * (len(self.columns) - 1)]
        rows = (self.columns, rule, *self.rows)
        lines = ("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)
        return "\n".join((f"**{self.title}**", "", *lines))


class Line(msgspec.Struct, frozen=True):
    """A line of a plot. ``low`` and ``high`` are the smallest and largest run at each x, or empty."""

    label: str
    x: list[float]
    y: list[float]
    low: list[float] = []
    high: list[float] = []

    @classmethod
    def of_runs(cls, label: str, runs: Mapping[float, Sequence[float]]) -> Line:
        """The medians over x, with the smallest and the largest; ``runs`` has the values of all runs at each x."""
        low, high = ([least(values) for values in runs.values()] for least in (min, max))
        return cls(label, [*runs], [median(values) for values in runs.values()], low, high)


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
