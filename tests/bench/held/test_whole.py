"""The whole benchmark with few requests: all are held, all are answered, and a report comes of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.held.scenario import Load, Outcome, measure
from bench.held.tables import report

LOAD = Load(num_prefill=2, num_decode=2, levels=(0, 20, 40), num_burst=20, window_s=0.2)
CROWD = Load(num_prefill=2, num_decode=2, levels=(0, 40), num_burst=0, num_streams=20, window_s=0.2)


def memory_goals(crowd: Outcome) -> list[str]:
    return [row[-1] for row in report([crowd], CROWD, [crowd], CROWD).tables[-1].rows if row[-1]]


@pytest.mark.slow
async def test_a_small_load_is_held_and_answered() -> None:
    run = await measure(LOAD)
    assert (run.num_done, run.num_failed, run.failure) == (60, 0, "")
    assert (run.num_prefills, run.num_decodes, run.num_lapsed) == (60, 60, 0)
    assert 0 < run.burst.least_ms <= 6000
    crowd = await measure(CROWD)
    assert (crowd.num_done, crowd.num_failed) == (60, 0)
    found = report([run, run], LOAD, [crowd], CROWD)
    assert [len(table.rows) for table in found.tables] == [3, 8, 6]
    assert all(len(row) == len(table.columns) for table in found.tables for row in table.rows)
    assert memory_goals(crowd) == ["1024: reached", "0"]
    assert memory_goals(replace(crowd, num_failed=1)) == ["1024: missed", "0"], "who failed takes no memory"
    assert found.plots[0].lines[0].x == [0, 20, 40]
