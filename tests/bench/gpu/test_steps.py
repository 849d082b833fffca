"""The benchmark of GPUs, on a CPU and with a tiny model; and what it says of what it found."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from bench.gpu.result import plots, table
from bench.gpu.steps import Cell, measure
from bench.gpu.ways import load_way
from bench.report.lacking import LACKING
from tests.kits import tiny_models
from workers.rank_protocol.spec import RankSpec

if TYPE_CHECKING:
    from pathlib import Path


def test_cells_are_measured_in_every_way_or_in_none(tmp_path: Path) -> None:
    folder = tiny_models.build(tmp_path, "llama")
    spec = RankSpec(model=str(folder), engine_id="gpu", device="cpu", num_blocks=40, transfer="none")
    ranks = {"one": load_way(spec), "two": load_way(spec)}
    cells = [Cell(1, 40), Cell(3, 100), Cell(9, 100), Cell(1, 5000)]
    measure(ranks, cells, 2, spec.block_size)
    assert [len(cell.steps_ms.get("two", [])) for cell in cells] == [2, 2, 0, 0]
    assert all(one > 0 for cell in cells for runs in cell.steps_ms.values() for one in runs)


def test_the_table_compares_run_by_run() -> None:
    cells = [Cell(1, 1024, {"slow": [8.0, 6.0], "fast": [2.0, 2.0]}), Cell(8, 1024)]
    made = table(cells, ["slow", "fast"])
    assert made.columns == ["sequences", "tokens of context", "slow, ms", "fast, ms", "slow / fast"]
    assert made.rows == [
        ["1", "1,024", "7.00 (6.00 to 8.00)", "2.00 (2.00 to 2.00)", "3.50 (3.00 to 4.00)"],
        ["8", "1,024", "no room in the cache", "-", "-"],
    ]


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
