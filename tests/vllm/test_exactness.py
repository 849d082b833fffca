"""A P and a D give the answers of one vLLM, whatever each of them has cached, cuts into pieces or preempts.

Both have few blocks. They read over TCP, so that a read stays open while P stands still.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence

import pytest
import pytest_asyncio

from baton_serve.baton.cluster.cluster import POLL_S
from baton_serve.baton.cluster.process import stopped
from baton_serve.baton.processes.vllm.connectors import BATON
from baton_serve.baton.processes.vllm.program import find_vllm
from bench.connector.pair import BLOCK_SIZE, Answer, Pair, PairShape, num_wrong, pair, prompts
from tests.vllm.conftest import VARIABLE

LEASE_DURATION_S = 6
CHUNK_TOKENS = 64
NUM_P_BLOCKS = 40
NUM_D_BLOCKS = 32
SHAPE = PairShape(
    BATON,
    LEASE_DURATION_S,
    f"--max-model-len 768 --max-num-seqs 16 --block-size {BLOCK_SIZE} --max-num-batched-tokens {CHUNK_TOKENS}",
    p_args=f"--num-gpu-blocks-override {NUM_P_BLOCKS}",
    d_args=f"--num-gpu-blocks-override {NUM_D_BLOCKS}",
)
PREEMPTIONS = "vllm:num_preemptions_total"
HITS = "vllm:prefix_cache_hits_total"
#: Reads that wait for their blocks, among others.
DEFERRED = ("vllm:num_requests_waiting_by_reason", "deferred")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def both(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Pair]:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("UCX_TLS", "tcp")
        program = find_vllm(os.environ[VARIABLE])
        async with pair(program, SHAPE, tmp_path_factory.mktemp("exactness")) as started:
            yield started


@pytest.fixture(scope="module")
def new_prompts() -> Iterator[str]:
    return prompts(num_sentences=3)


async def right_answers(both: Pair, asked: Sequence[str]) -> list[Answer]:
    """P's own: so D has cached nothing of these prompts."""
    return [await both.ask(both.p, prompt) for prompt in asked]


async def until(is_so: Callable[[], Awaitable[float]]) -> None:
    """vLLM tells nobody."""
    while True:
        if await is_so():
            return
        await asyncio.sleep(POLL_S)


async def num_reading(both: Pair) -> float:
    name, reason = DEFERRED
    samples = await both.cluster.metrics("d")
    return sum(one.value for one in samples if one.name == name and one.labels.get("reason") == reason)


async def num_preempted(both: Pair, before: float) -> float:
    return await both.metric("d", PREEMPTIONS) - before


async def test_prompts_that_both_sides_have_in_part(both: Pair) -> None:
    shared = next(prompts(num_sentences=6))
    asked = [f"{shared} And what if there are {number} of them?" for number in range(4)]
    right = await right_answers(both, asked)
    hits, checks = [await both.metric(name, HITS) for name in "pd"], await both.checks()
    assert num_wrong([await both.hand_off(prompt) for prompt in asked], right) == 0
    assert all([await both.metric(name, HITS) > before for name, before in zip("pd", hits, strict=True)])
    assert await both.checks() - checks == {"kept": len(asked)}


async def test_a_late_read_of_a_prompt_that_d_has_in_part(both: Pair, new_prompts: Iterator[str]) -> None:
    """D reads the last blocks only, and others have taken those."""
    shared = f"Again: {next(prompts(num_sentences=6))}"
    first, second = (f"{shared} And what if there are {number} of them?" for number in (5, 6))
    (right,) = await right_answers(both, [second])
    await both.hand_off(first)
    params, hits, checks = await both.prefill(second), await both.metric("d", HITS), await both.checks()
    with both.d_stopped() as go_on:
        answer = asyncio.create_task(both.ask(both.d, second, params))
        await both.until_p_is_free()
        for prompt in itertools.islice(new_prompts, NUM_P_BLOCKS // 4):
            await both.ask(both.p, prompt, max_tokens=1)
        go_on()
        assert (await answer).is_like(right)
    assert await both.metric("d", HITS) > hits
    assert await both.checks() - checks == {"stale": 1}


async def test_prompts_in_pieces_more_than_p_has_blocks_for(both: Pair, new_prompts: Iterator[str]) -> None:
    asked = [f"{one} {next(new_prompts)} {next(new_prompts)}" for one in itertools.islice(new_prompts, 10)]
    right = await right_answers(both, asked)
    checks = await both.checks()
    answers = await asyncio.gather(*map(both.hand_off, asked))
    assert num_wrong(answers, right) == 0
    found = await both.checks() - checks
    assert found["kept"] > 0 and found.keys() <= {"kept", "late", "stale"}


async def test_d_preempts_while_a_read_is_open(both: Pair, new_prompts: Iterator[str]) -> None:
    """P stands still in the middle of the read, until what D decodes has taken all of its blocks."""
    read, *decoded = itertools.islice(new_prompts, 9)
    await both.hand_off(next(new_prompts))  # both have met
    (right,) = await right_answers(both, [read])
    wanted = [await both.ask(both.p, prompt, max_tokens=120) for prompt in decoded]
    params, checks = await both.prefill(read), await both.checks()
    preemptions = await both.metric("d", PREEMPTIONS)
    with stopped(*both.cluster.ranks("p")) as go_on:
        answer = asyncio.create_task(both.ask(both.d, read, params))
        await until(lambda: num_reading(both))
        others = [asyncio.create_task(both.ask(both.d, prompt, max_tokens=120)) for prompt in decoded]
        await until(lambda: num_preempted(both, preemptions))
        assert await num_reading(both) and not answer.done()
        go_on()
        assert (await answer).is_like(right)
        assert num_wrong([await one for one in others], wanted) == 0
    assert await both.checks() - checks == {"kept": 1}


async def test_p_that_starts_again_under_its_address(both: Pair, new_prompts: Iterator[str]) -> None:
    """What it handed off before is computed, and what it hands off now is read."""
    before, after = itertools.islice(new_prompts, 2)
    right = await right_answers(both, [before, after])
    params = await both.prefill(before)
    both.cluster.kill("p")
    await both.cluster.ended("p")
    await both.cluster.start("p")
    checks = await both.checks()
    assert (await both.ask(both.d, before, params)).is_like(right[0])
    assert (await both.hand_off(after)).is_like(right[1])
    assert await both.checks() - checks == {"kept": 1}
