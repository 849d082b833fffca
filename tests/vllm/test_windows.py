"""Models with sliding windows: prompts of all lengths modulo block and window have the answer of one server.

vLLM gives up blocks that the next token does not need, and D computes the last token of the prompt once more.
"""

from __future__ import annotations

import asyncio
import os
import random
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator
from dataclasses import dataclass

import httpx
import pytest
import pytest_asyncio

from baton_serve.baton.cluster.cluster import SHORT_KEPT
from baton_serve.baton.cluster.process import ROUTER, ProcessSpec
from baton_serve.baton.processes.vllm.connectors import BATON, STOCK, Connector
from baton_serve.baton.processes.vllm.program import find_vllm
from bench.connector.pair import BLOCK_SIZE, Answer, Pair, PairShape, num_wrong, pair
from tests.kits.tiny_models import VOCAB_SIZE, build
from tests.vllm.conftest import VARIABLE

#: One of the windows is no multiple of the block size.
WINDOWS = {"gemma3_text": 64, "mistral": 80}
LENGTHS = range(90, 90 + 96)
NUM_AT_ONCE = 8
ARGS = f"--max-model-len 512 --max-num-seqs 16 --block-size {BLOCK_SIZE} --no-enable-prefix-caching"
#: vLLM has kernels for CPUs with heads of this size.
HEAD = {"head_dim": 32}


@dataclass(frozen=True)
class Served:
    """A pair of servers with one connector, and the window of their model."""

    pair: Pair
    window: int
    connector: Connector

    def is_wrong_in_stock_vllm(self, num_tokens: int) -> bool:
        return (num_tokens - self.window + 1) % BLOCK_SIZE == 0


def prompt(num_tokens: int) -> list[int]:
    return random.Random(num_tokens).choices(range(2, VOCAB_SIZE), k=num_tokens)


@pytest_asyncio.fixture(
    scope="module", loop_scope="session", params=[(kind, c) for kind in WINDOWS for c in (STOCK, BATON)]
)
async def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    kind, connector = request.param
    folder = tmp_path_factory.mktemp(kind)
    scaled = {"query_pre_attn_scalar": HEAD["head_dim"]} if kind == "gemma3_text" else {}
    model = build(folder / "model", kind, sliding_window=WINDOWS[kind], **HEAD, **scaled)
    shape = PairShape(connector, args=ARGS, model=model)
    async with pair(find_vllm(os.environ[VARIABLE]), shape, folder) as both:
        yield Served(both, WINDOWS[kind], connector)


async def right_answers(both: Pair, lengths: list[int]) -> list[Answer]:
    return [await both.ask(both.p, prompt(length), max_tokens=8) for length in lengths]


async def test_a_router_in_front_of_them_answers_right(served: Served) -> None:
    both = served.pair
    right = await right_answers(both, [*LENGTHS])
    lists = {"prefill": both.p_place.router_address(), "decode": both.d_place.router_address()}
    router = await both.cluster.add("router", ProcessSpec(ROUTER, {"port": 0, "redis-url": "", **lists}), num_workers=2)
    try:
        answers: list[Answer] = []
        for begin in range(0, len(LENGTHS), NUM_AT_ONCE):
            part = LENGTHS[begin : begin + NUM_AT_ONCE]
            answers += await asyncio.gather(*(both.ask(router.url, prompt(one), max_tokens=8) for one in part))
        assert num_wrong(answers, right) == 0
        async with httpx.AsyncClient(limits=SHORT_KEPT, trust_env=False) as http:
            workers = (await http.get(f"{router.url}/admin/workers")).json()["workers"]
        (p,) = [one for one in workers if one["role"] == "prefill"]
        num_harmful = sum(map(served.is_wrong_in_stock_vllm, LENGTHS))
        if served.connector is STOCK:
            assert p["unreadable_hand_offs"] >= num_harmful
            assert "sliding window" in p["problem"]
        else:
            assert (p["unreadable_hand_offs"], p["problem"]) == (0, "")
    finally:
        both.cluster.kill("router")
        await both.cluster.ended("router")


async def test_batons_connector_hands_over_all_and_stock_vllm_is_wrong_at_some(served: Served) -> None:
    """The second half is what the router's stop-gap is for: when it fails, vLLM has been mended."""
    both = served.pair
    lengths = (
        [one for one in LENGTHS if served.is_wrong_in_stock_vllm(one)] if served.connector is STOCK else [*LENGTHS]
    )
    right, checks = await right_answers(both, lengths), await both.checks()
    answers = [await both.hand_off(prompt(length), max_tokens=8) for length in lengths]
    assert num_wrong(answers, right) == (len(lengths) if served.connector is STOCK else 0)
    found = await both.checks() - checks
    assert found == ({} if served.connector is STOCK else {"kept": len(lengths)})


@pytest.mark.parametrize("kind", ["producer", "reader"])
async def test_pipeline_stages_are_refused_by_name(kind: str) -> None:
    """The tables of words are of the ranks of one stage."""
    code = {
        "producer": "from types import SimpleNamespace as N; from baton_serve.workers.vllm.connector import _refuse; "
        "_refuse(N(kv_transfer_config=N(get_from_extra_config=lambda name, default: default), parallel_config=N("
        "decode_context_parallel_size=1, prefill_context_parallel_size=1, pipeline_parallel_size=2)))",
        "reader": "from baton_serve.workers.vllm.worker import BatonWorker as W; "
        "W._nixl_handshake(W.__new__(W), 'p', 1, 1, 'e', remote_pp_size=2)",
    }[kind]
    (python, *_) = find_vllm(os.environ[VARIABLE]).command
    program = await asyncio.create_subprocess_exec(python, "-c", code, stdout=DEVNULL, stderr=PIPE)
    _, said = await program.communicate()
    assert program.returncode == 1
    assert b"pipeline" in said.splitlines()[-1]
