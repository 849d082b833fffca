"""What one round comes to, and which prompts it asks."""

from __future__ import annotations

import pytest

from bench.client import Stream
from bench.handoff.result import BATON, VLLM, report
from bench.handoff.rounds import Cell, CellRun, Results, make_cells
from bench.models.words import SPECIAL, VOCAB_SIZE, make_prompts


def test_a_hand_off_is_what_neither_the_prefill_nor_a_step_of_d_takes() -> None:
    assert CellRun(prefill_s=2.0, first_of_d_s=7.5, step_s=0.5).hand_off_s == 5.0


def test_a_stream_is_timed_from_the_piece_that_d_makes_first() -> None:
    stream = Stream(10.0, 15.5, [11.0, 14.0, 14.5, 15.5], "text")
    assert stream.until_s(1) == 4.0
    assert stream.gaps_s(1) == [0.5, 1.0]


def test_only_the_largest_cell_takes_turns_with_two_sets_of_prompts() -> None:
    small, large = make_cells([10, 20], [2])
    assert small.prompts(0) == small.prompts(1)
    assert large.prompts(0) != large.prompts(1)
    assert large.prompts(0) == large.prompts(2)
    assert [len(burst) for burst in large.prompts(0)] == [2]


def test_prompts_are_the_same_each_time_and_have_words_only() -> None:
    prompts = make_prompts("seed", 3, 50)
    assert prompts == make_prompts("seed", 3, 50)
    assert len({prompt[0] for prompt in prompts}) == 3
    assert all(len(SPECIAL) <= token < VOCAB_SIZE for prompt in prompts for token in prompt)


@pytest.fixture
def results() -> Results:
    found = Results()
    cell = Cell(100, 1)
    for first_s in (0.008, 0.006, 0.007):
        found.add(cell, BATON, CellRun(0.001, first_s, 0.001))
    found.ttft[100] = [(0.011, 0.010), (0.012, 0.010)]
    return found


def test_the_ratio_is_that_of_each_round(results: Results) -> None:
    for first_s in (0.014, 0.0121, 0.022):
        results.add(Cell(100, 1), VLLM, CellRun(0.001, first_s, 0.001))
    (row,) = report(results, "command").tables[0].rows
    assert row[:4] == ["100, 1", "12.0 (10.1 to 20.0)", "5.00 (4.00 to 6.00)", "0.396 (0.250 to 0.500)"]


def test_without_vllm_its_cells_are_empty_and_a_remark_says_why(results: Results) -> None:
    made = report(results, "command", ["vLLM was not measured: there is none."])
    assert made.about[-1] == "vLLM was not measured: there is none."
    assert made.tables[0].rows == [["100, 1", "-", "5.00 (4.00 to 6.00)", "-", "-", "1.00 (1.00 to 1.00)"]]
    assert made.tables[1].rows[0][3] == "1.15 (1.10 to 1.20)"
