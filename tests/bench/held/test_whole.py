"""The whole benchmark with few requests: all are held, all are answered, and a report comes of it."""

from __future__ import annotations

import pytest

from bench.held.scenario import Load, measure
from bench.held.tables import report

LOAD = Load(num_prefill=2, num_decode=2, levels=(0, 20, 40), num_burst=20, window_s=0.2)


@pytest.mark.slow
async def test_a_small_load_is_held_and_answered() -> None:
    run = await measure(LOAD)
    assert (run.num_done, run.num_failed, run.failure) == (60, 0, "")
    assert (run.num_prefills, run.num_decodes, run.num_lapsed) == (60, 60, 0)
    assert 0 < run.burst.least_ms <= 6000
    found = report([run, run], LOAD)
    assert [len(table.rows) for table in found.tables] == [3, 8, 1]
    assert all(len(row) == len(table.columns) for table in found.tables for row in table.rows)
    assert found.plots[0].lines[0].x == [0, 20, 40]
