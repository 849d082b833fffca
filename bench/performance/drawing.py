"""Draws plots as SVG files. The same plot makes the same bytes, so a file changes only when its numbers do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.report.model import Line, Plot

SIZE_INCHES = (7.5, 4.2)
#: Paul Tol's bright colours, which differ also for those who see few colours.
COLOURS = ("#4477AA", "#EE6677", "#228833", "#CCBB44", "#66CCEE", "#AA3377", "#555555")
MARKERS = "osD^vPX"
STYLE: dict[Any, object] = {
    "svg.hashsalt": "baton",
    "svg.fonttype": "none",
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "axes.grid": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.alpha": 0.35,
}


def draw(plot: Plot, path: Path) -> None:
    """Write the plot as an SVG file. Raises ValueError if the lengths within a line differ."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=SIZE_INCHES, layout="constrained")
        axes = figure.subplots()
        for number, line in enumerate(plot.lines):
            _draw_line(axes, line, COLOURS[number % len(COLOURS)], MARKERS[number // len(COLOURS) % len(MARKERS)])
        axes.set(title=plot.title, xlabel=plot.x_label, ylabel=plot.y_label)
        axes.set_xscale("log" if plot.log_x else "linear")
        axes.set_yscale("log" if plot.log_y else "linear")
        if not plot.log_y:
            axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
        if len(plot.lines) > 1:
            axes.legend()
        figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})


def _draw_line(axes: Axes, line: Line, colour: str, marker: str) -> None:
    axes.plot(line.x, line.y, label=line.label, color=colour, marker=marker, markersize=4, linewidth=1.6)
    if line.low and line.high:
        axes.fill_between(line.x, line.low, line.high, color=colour, alpha=0.15, linewidth=0)
