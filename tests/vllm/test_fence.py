"""A D that reads too late: wrong answers without the fence, and none with it."""

from __future__ import annotations

import asyncio
import itertools
import os
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from baton_serve.baton.processes.vllm.connectors import BATON, Connector
from baton_serve.baton.processes.vllm.program import find_vllm
from bench.connector.pair import BLOCK_SIZE, Pair, pair, prompts
from tests.vllm.conftest import VARIABLE
from tests.vllm.stale_reads import NUM_AT_ONCE, Result, StaleReads, shape_with

#: How many tokens of the answers D computes whose blocks it could not use: a line of vLLM's log.
RECOMPUTED = re.compile(r"Recovered from KV load failure: 1 request\(s\) rescheduled \((\d+) tokens affected\)")


async def run(folder: Path, connector: Connector, rounds: int, p_tp: int = 1, d_tp: int = 1) -> Result:
    async with pair(find_vllm(os.environ[VARIABLE]), shape_with(connector, p_tp, d_tp), folder) as both:
        return await StaleReads(both).run(rounds)


def check_late(result: Result, num_checks: int) -> None:
    """P had ended all of them, and given away blocks of most."""
    assert result.late_checks.keys() <= {"stale", "late"}
    assert sum(result.late_checks.values()) == num_checks
    assert result.late_checks["stale"] > num_checks // 2


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def both(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Pair]:
    """One rank each, without prefix caching."""
    program = find_vllm(os.environ[VARIABLE])
    async with pair(program, shape_with(BATON), tmp_path_factory.mktemp("fence")) as started:
        yield started


async def test_a_late_read_is_noticed_and_computed_again(both: Pair) -> None:
    result = await StaleReads(both).run(rounds=2)
    assert (result.num_late_wrong, result.num_on_time_wrong) == (0, 0)
    check_late(result, 2 * NUM_AT_ONCE)
    assert result.on_time_checks == {"kept": 2 * NUM_AT_ONCE}


@pytest.mark.parametrize(("num_takers", "verdict"), [(0, "late"), (1, "stale")])
async def test_blocks_that_nobody_has_taken_are_used_after_the_end(both: Pair, num_takers: int, verdict: str) -> None:
    """Without prefix caching P gives away first what it got back last: the last blocks of the hand-off."""
    long = f"{verdict} {next(prompts(num_sentences=11))}"
    short = list(itertools.islice(prompts(num_sentences=1), num_takers))
    right, params, before = await both.ask(both.d, long), await both.prefill(long), await both.checks()
    num_blocks = len(params["remote_block_ids"][0])
    with both.d_stopped() as go_on:
        answer = asyncio.create_task(both.ask(both.d, long, params))
        await both.until_p_is_free()
        for prompt in short:
            await both.ask(both.p, prompt, max_tokens=1)
        go_on()
        assert (await answer).is_like(right)
    assert await both.checks() - before == {verdict: 1}
    computed = RECOMPUTED.findall((both.cluster.folder / "d.log").read_text())
    if num_takers:
        assert 0 < int(computed[-1]) < num_blocks // 2 * BLOCK_SIZE
    log = (both.cluster.folder / "p.log").read_text()
    assert "Potentially invalid KV blocks" not in log  # P is told of no read that it did not keep the blocks for


@pytest.mark.parametrize(("p_tp", "d_tp"), [(2, 1), (1, 2)])
async def test_every_rank_of_d_checks_every_rank_of_p_that_it_reads(tmp_path: Path, p_tp: int, d_tp: int) -> None:
    result = await run(tmp_path, BATON, 1, p_tp, d_tp)
    assert (result.num_late_wrong, result.num_on_time_wrong) == (0, 0)
    check_late(result, NUM_AT_ONCE * d_tp)
    assert result.on_time_checks == {"kept": NUM_AT_ONCE * d_tp}


async def test_without_the_fence_the_same_reads_give_another_prompts_text(tmp_path: Path) -> None:
    result = await run(tmp_path, Connector(BATON.name, BATON.module, {"fence": False}), rounds=1)
    assert result.num_late_wrong > NUM_AT_ONCE // 2
    assert result.num_on_time_wrong == 0
    assert not result.late_checks and not result.on_time_checks
