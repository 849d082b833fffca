"""What was measured, as tables and plots."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from bench.gpu.steps import Cell, Chunk
from bench.report.model import Line, Plot, Table
from bench.report.spread import spread


def table(cells: Sequence[Cell], ways: Sequence[str], limits_ms: Sequence[float]) -> Table:
    """A row for each batch: each way; how much faster it is than the first, run by run; the limit of each cell; and how
    near the last way comes to it.
    """
    first, *others = ways
    columns = [
        "sequences",
        "tokens of context",
        *(f"{way}, ms" for way in ways),
        *(f"{first} / {way}" for way in others),
        "limit, ms",
        f"limit / {ways[-1]}",
    ]
    rows = [_row(cell, ways, limit_ms) for cell, limit_ms in zip(cells, limits_ms, strict=True)]
    return Table("One decode step", columns, rows)


def _row(cell: Cell, ways: Sequence[str], limit_ms: float) -> list[str]:
    batch = [str(cell.num_rows), f"{cell.num_tokens:,}"]
    if not cell.steps_ms:
        return [*batch, "no room in the cache", *["-"] * (2 * len(ways) - 2), f"{limit_ms:.2f}", "-"]
    nearness = spread([limit_ms / one for one in cell.steps_ms[ways[-1]]])
    return [*batch, *_times_and_gains(cell.steps_ms, ways), f"{limit_ms:.2f}", nearness]


def _times_and_gains(steps_ms: Mapping[str, Sequence[float]], ways: Sequence[str]) -> list[str]:
    first, *others = (steps_ms[way] for way in ways)
    gains = [[a / b for a, b in zip(first, other, strict=True)] for other in others]
    return [spread(first), *map(spread, others), *map(spread, gains)]


def chunks_table(chunks: Sequence[Chunk], ways: Sequence[str]) -> Table:
    """A row for each chunk: each way, and how much faster it is than the first, run by run."""
    first, *others = ways
    columns = ["tokens", "cached tokens before", *(f"{way}, ms" for way in ways)]
    columns += [f"{first} / {way}" for way in others]
    rows = [
        [f"{chunk.num_tokens:,}", f"{chunk.num_cached:,}", *_times_and_gains(chunk.steps_ms, ways)] for chunk in chunks
    ]
    return Table("One chunk of a prompt", columns, rows)


def plots(cells: Sequence[Cell], ways: Sequence[str]) -> Iterator[Plot]:
    """For each number of sequences: milliseconds of a step over the length of the context."""
    for num_rows in dict.fromkeys(cell.num_rows for cell in cells):
        found = [cell for cell in cells if cell.num_rows == num_rows and cell.steps_ms]
        if len(found) > 1:
            lines = [Line.of_runs(way, {cell.num_tokens: cell.steps_ms[way] for cell in found}) for way in ways]
            title = f"A decode step of {num_rows} sequences"
            name = f"gpu-steps-{num_rows}"
            yield Plot(name, title, "tokens of context", "ms", lines, log_x=True, log_y=True)
