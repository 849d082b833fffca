"""A D that reads too late: wrong answers without the fence, and none with it."""

from __future__ import annotations

import os
from pathlib import Path

from baton.processes.vllm.connectors import BATON, UNFENCED
from baton.processes.vllm.program import find_vllm
from bench.stale_reads.rounds import NUM_AT_ONCE, stale_reads
from tests.vllm.conftest import VARIABLE


async def test_a_late_read_is_noticed_and_computed_again(tmp_path: Path) -> None:
    async with stale_reads(find_vllm(os.environ[VARIABLE]), BATON, tmp_path) as both:
        result = await both.run(2)
    assert (result.num_late_wrong, result.num_on_time_wrong) == (0, 0)
    assert result.late_checks == {"stale": 2 * NUM_AT_ONCE}
    assert result.on_time_checks == {"kept": 2 * NUM_AT_ONCE}


async def test_without_the_fence_the_same_reads_give_another_prompts_text(tmp_path: Path) -> None:
    async with stale_reads(find_vllm(os.environ[VARIABLE]), UNFENCED, tmp_path) as both:
        result = await both.run(1)
    assert result.num_late_wrong > NUM_AT_ONCE // 2
    assert result.num_on_time_wrong == 0
    assert not result.late_checks and not result.on_time_checks
