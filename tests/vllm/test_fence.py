"""A D that reads too late: wrong answers without the fence, and none with it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from baton.processes.vllm.connectors import BATON, UNFENCED, Connector
from baton.processes.vllm.program import find_vllm
from bench.connector.pair import pair
from bench.connector.stale_reads import NUM_AT_ONCE, Result, StaleReads, shape_with
from tests.vllm.conftest import VARIABLE


async def run(folder: Path, connector: Connector, rounds: int, p_tp: int = 1, d_tp: int = 1) -> Result:
    async with pair(find_vllm(os.environ[VARIABLE]), shape_with(connector, p_tp, d_tp), folder) as both:
        return await StaleReads(both).run(rounds)


async def test_a_late_read_is_noticed_and_computed_again(tmp_path: Path) -> None:
    result = await run(tmp_path, BATON, rounds=2)
    assert (result.num_late_wrong, result.num_on_time_wrong) == (0, 0)
    assert result.late_checks == {"stale": 2 * NUM_AT_ONCE}
    assert result.on_time_checks == {"kept": 2 * NUM_AT_ONCE}


@pytest.mark.parametrize(("p_tp", "d_tp"), [(2, 1), (1, 2)])
async def test_every_rank_of_d_checks_every_rank_of_p_that_it_reads(tmp_path: Path, p_tp: int, d_tp: int) -> None:
    result = await run(tmp_path, BATON, 1, p_tp, d_tp)
    assert (result.num_late_wrong, result.num_on_time_wrong) == (0, 0)
    assert result.late_checks == {"stale": NUM_AT_ONCE * d_tp}
    assert result.on_time_checks == {"kept": NUM_AT_ONCE * d_tp}


async def test_without_the_fence_the_same_reads_give_another_prompts_text(tmp_path: Path) -> None:
    result = await run(tmp_path, UNFENCED, rounds=1)
    assert result.num_late_wrong > NUM_AT_ONCE // 2
    assert result.num_on_time_wrong == 0
    assert not result.late_checks and not result.on_time_checks
