"""``python -m bench.gpu``: steps on the first GPU, gathered and in place, with graphs and without.

Without a GPU it says so, and ends with the status of a benchmark for which this machine lacks something.
"""

from __future__ import annotations

import argparse
import sys

from bench.gpu.result import chunks_table, plots, table
from bench.gpu.steps import Cell, Chunk, measure, measure_chunks
from bench.gpu.ways import WAYS, copy_bytes_per_s, load_ways, step_bytes
from bench.models.sized import SIZES, model_folder
from bench.report import command
from bench.report.command import LACKING, lacks_gpu
from bench.report.model import Report

BATCHES = (1, 8, 32, 128)
CONTEXTS = (1024, 4096, 16_384, 32_000)
CHUNKS = ((16, 0), (128, 0), (512, 0), (1024, 0), (2048, 0), (16, 16_000), (128, 16_000), (1024, 16_000))
ABOUT = (
    "A step of the {model} model (random weights, bfloat16) on {device}: the forward pass, sampling and the "
    "wait for the GPU. *Gathered* copies keys and values of every layer together before each attention; *in place* "
    "reads the blocks where they are; *graphs* start a whole decode step by one call, and chunks of prompts have none. "
    "No two sequences share a block."
)
LIMIT = (
    "*Limit* is the time in which the GPU moves the bytes that a step has to read: every weight once, and the keys and "
    "values of every context. It moves {gb_per_s:,.0f} GB/s, measured by a copy within its memory. The last column is "
    "the part of this speed that the last way reaches."
)


def main() -> int:
    """Measure and report."""
    given = _parser().parse_args()
    if lacks_gpu():
        return LACKING
    import torch

    report = _measure(given.model, given.runs, torch.cuda.get_device_name(0))
    command.finish(report, given.report)
    return 0


def _measure(model: str, runs: int, device: str) -> Report:
    bytes_per_s = copy_bytes_per_s()
    ranks = load_ways(model_folder(SIZES[model]), max(BATCHES))
    cells = [Cell(rows, tokens) for tokens in CONTEXTS for rows in BATCHES]
    measure(ranks, cells, runs)
    chunks = [Chunk(*each) for each in CHUNKS]
    measure_chunks(ranks, chunks, runs)
    limits_ms = [step_bytes(SIZES[model], cell) / bytes_per_s * 1e3 for cell in cells]
    return Report(
        title="Steps on a GPU",
        command=f"python -m bench.gpu --model {model} --runs {runs}",
        about=[ABOUT.format(model=model, device=device), LIMIT.format(gb_per_s=bytes_per_s / 1e9)],
        tables=[table(cells, list(WAYS), limits_ms), chunks_table(chunks, list(WAYS))],
        plots=list(plots(cells, list(WAYS))),
    )


def _parser() -> argparse.ArgumentParser:
    parser = command.parser("bench.gpu", __doc__)
    parser.add_argument("--model", choices=sorted(SIZES), default="500M", help="default %(default)s")
    return parser


if __name__ == "__main__":
    sys.exit(main())
