"""What the engine's benchmark asks, and how it shows what it found."""

from __future__ import annotations

from argparse import ArgumentTypeError
from pathlib import Path

import pytest

from bench.engine import contexts, setups
from bench.engine.contexts import Context
from bench.engine.result import summary, table, verdict
from bench.engine.rounds import Cell
from bench.engine.servers import PRELOADED, preloaded
from bench.engine.work import NUM_ARRIVALS, Decode, Trace
from bench.models.sized import SIZES, VOCAB_SIZE

SETUP = setups.FEW[0]


def cell(*ratios: float) -> Cell:
    rates = {"baton": [100.0 * ratio for ratio in ratios], "vllm-eager": [100.0] * len(ratios)}
    return Cell(SETUP, Decode(8, 16), rates)


def test_the_few_show_every_size_type_and_number_of_threads() -> None:
    assert {setup.size.name for setup in setups.FEW} == set(SIZES)
    assert {setup.dtype for setup in setups.FEW} == set(setups.DTYPES)
    assert {setup.threads for setup in setups.FEW} == set(setups.THREADS)
    assert set(setups.FEW) < set(setups.ALL)


def test_a_setup_is_found_by_its_name() -> None:
    assert setups.by_name("50M,bfloat16,2").threads == 2
    with pytest.raises(ArgumentTypeError, match="5M,float32,1"):
        setups.by_name("50M")


def test_every_server_gets_the_same_trace() -> None:
    trace = Trace(400, 40)
    arrivals = trace.arrivals(3)
    assert arrivals == trace.arrivals(3) != trace.arrivals(4)
    assert len(arrivals) == NUM_ARRIVALS
    assert sorted(each.at for each in arrivals) == [each.at for each in arrivals]
    assert arrivals[0].at == 0 < arrivals[-1].at < 1
    assert all(0 < max(each.prompt) < VOCAB_SIZE and len(each.prompt) <= 400 for each in arrivals)


def test_a_cell_reaches_the_goal_by_the_median_of_its_ratios() -> None:
    assert verdict(cell(0.5, 0.7, 1.2)) == "reached"
    assert verdict(cell(0.5, 0.6, 3.0)) == "missed"
    assert table([cell(0.5, 0.6, 3.0)]).rows[0][-3:] == ["eager", "0.600 (0.500 to 3.00)", "missed"]


def test_the_summary_has_the_geometric_mean_of_all_cells() -> None:
    said = summary([cell(2.0), cell(0.5, 0.6, 3.0), cell(0.3)], 12)
    assert said.startswith("Measured are 1 of 12 setups: 5M float32 1. 1 of 3 cells reach the goal.")
    assert "is 0.71, and is to be 1." in said


def test_without_vllm_the_report_says_so() -> None:
    alone = Cell(SETUP, Decode(8, 16), {"baton": [100.0]})
    assert "vLLM was not measured" in summary([alone], 12)
    assert table([alone]).rows[0][-4:] == ["-", "-", "-", "not measured"]


def test_only_libraries_that_exist_are_preloaded(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / PRELOADED[1]).touch()
    assert preloaded(tmp_path)[-1] == str(tmp_path / "lib" / PRELOADED[1])


def test_growth_is_per_megabyte_beyond_the_shortest_context() -> None:
    near, far = Context(1000, [2.0, 4.0]), Context(3000, [7.0, 9.0])
    assert (near.read_mb, far.read_mb) == (pytest.approx(6.144), pytest.approx(18.432))
    rows = contexts.table([near, far]).rows
    assert [row[-1] for row in rows] == ["-", "0.407 (0.326 to 0.488)"]
