"""The benchmark of GPUs, on a CPU and with a tiny model; and what it says of what it found."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from baton_serve.workers.rank_protocol.spec import RankSpec
from bench.gpu.result import chunks_table, plots, table
from bench.gpu.steps import Cell, Chunk, measure, measure_chunks
from bench.gpu.ways import step_bytes
from bench.models.sized import SIZES
from bench.report.command import LACKING
from bench.steps import load
from tests.kits import tiny_models


def test_cells_are_measured_in_every_way_or_in_none(tmp_path: Path) -> None:
    folder = tiny_models.build(tmp_path, "llama")
    spec = RankSpec(model=str(folder), engine_id="gpu", device="cpu", num_blocks=40, transfer="none")
    ranks = {"one": load(spec), "two": load(spec)}
    cells = [Cell(1, 40), Cell(3, 100), Cell(9, 100), Cell(1, 5000)]
    measure(ranks, cells, 2)
    assert [len(cell.steps_ms.get("two", [])) for cell in cells] == [2, 2, 0, 0]
    assert all(one > 0 for cell in cells for runs in cell.steps_ms.values() for one in runs)


def test_chunks_are_measured_in_every_way(tmp_path: Path) -> None:
    folder = tiny_models.build(tmp_path, "llama")
    spec = RankSpec(model=str(folder), engine_id="gpu", device="cpu", num_blocks=40, transfer="none")
    ranks = {"one": load(spec), "two": load(spec)}
    chunks = [Chunk(40, 0), Chunk(3, 30)]
    measure_chunks(ranks, chunks, 2)
    assert all(one > 0 for chunk in chunks for way in ranks for one in chunk.steps_ms[way])
    made = chunks_table([Chunk(1024, 0, {"slow": [8.0, 6.0], "fast": [2.0, 2.0]})], ["slow", "fast"])
    assert made.rows == [["1,024", "0", "7.00 (6.00 to 8.00)", "2.00 (2.00 to 2.00)", "3.50 (3.00 to 4.00)"]]
    assert len(made.columns) == len(made.rows[0])


def test_the_table_compares_run_by_run() -> None:
    cells = [Cell(1, 1024, {"slow": [8.0, 6.0], "fast": [2.0, 2.0]}), Cell(8, 1024)]
    made = table(cells, ["slow", "fast"], [1.0, 3.0])
    times, limits = ["slow, ms", "fast, ms", "slow / fast"], ["limit, ms", "limit / fast"]
    assert made.columns == ["sequences", "tokens of context", *times, *limits]
    found = ["7.00 (6.00 to 8.00)", "2.00 (2.00 to 2.00)", "3.50 (3.00 to 4.00)"]
    assert made.rows == [
        ["1", "1,024", *found, "1.00", "0.500 (0.500 to 0.500)"],
        ["8", "1,024", "no room in the cache", "-", "-", "3.00", "-"],
    ]


def test_a_step_reads_every_weight_and_every_context_once() -> None:
    size = SIZES["5M"]
    weights = step_bytes(size, Cell(0, 1000)) / 2
    assert weights == size.num_parameters
    # 4 KV heads of 32 numbers, keys and values, on 6 layers, two bytes each.
    assert step_bytes(size, Cell(3, 1000)) - 2 * weights == 3 * 1000 * 4 * 32 * 2 * 6 * 2


def test_a_plot_needs_two_contexts() -> None:
    cells = [Cell(1, 1024, {"way": [2.0, 1.0]}), Cell(1, 8192, {"way": [4.0]}), Cell(8, 1024, {"way": [4.0]})]
    (plot,) = plots(cells, ["way"])
    assert (plot.name, plot.lines[0].x, plot.lines[0].y) == ("gpu-steps-1", [1024, 8192], [1.5, 4.0])


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from bench.gpu.__main__ import main

    monkeypatch.setattr("sys.argv", ["bench.gpu"])
    assert main() == LACKING
    assert capsys.readouterr().out == "there is no CUDA device here\n"
