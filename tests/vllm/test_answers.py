"""Answers through Baton are those of one vLLM alone, token for token."""

from __future__ import annotations

import asyncio

import pytest

from bench.vllm.servers import EXPIRED
from tests.kits.vllm.asking import Answer, ask, ask_streamed, chat, completion, prompts
from tests.kits.vllm.stack import VllmStack

KINDS = {"chat": chat, "completion": completion}


async def expected(vllm: VllmStack, kind: str) -> list[Answer]:
    """What a server answers that is asked directly, one request at a time."""
    return [await ask(vllm.http, vllm.url("d1"), *KINDS[kind](prompt)) for prompt in prompts()]


@pytest.mark.parametrize("kind", KINDS)
async def test_greedy_answers_are_those_of_one_vllm_alone(vllm: VllmStack, kind: str) -> None:
    await vllm.need("p1", "d1")
    wanted = await expected(vllm, kind)
    expired = await vllm.metric("p1", EXPIRED)
    assert len({answer.text for answer in wanted}) > len(wanted) // 2  # they depend on the prompt
    async with vllm.router([vllm.address("p1")], [vllm.address("d1")]) as router:
        requests = [KINDS[kind](prompt) for prompt in prompts()]
        whole = await asyncio.gather(*(ask(vllm.http, router.url, *request) for request in requests))
        in_parts = await asyncio.gather(*(ask_streamed(vllm.http, router.url, *request) for request in requests))
        assert whole == wanted
        assert in_parts == wanted
        await vllm.until_free("p1", "d1")
    assert await vllm.metric("p1", EXPIRED) == expired
    assert await vllm.metric("d1", "vllm:nixl_bytes_transferred_sum") > 0  # D has read, and not computed again
