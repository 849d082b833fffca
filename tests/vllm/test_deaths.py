"""Servers that are killed with requests on them: other servers go on, and the answers are exact."""

from __future__ import annotations

import asyncio

from tests.kits.vllm.asking import Stream, ask, ask_streamed, chat, occupied, prompts, streamed, worker_of
from tests.kits.vllm.stack import VllmStack

PROMPT = prompts()[14]
TWO_D = ("p1", "d1", "d2")


async def test_d_dies_before_the_first_token(vllm: VllmStack) -> None:
    await vllm.need(*TWO_D)
    wanted = await ask(vllm.http, vllm.url("d1"), *chat(PROMPT))
    async with vllm.router([vllm.address("p1")], [vllm.address("d1"), vllm.address("d2")]) as router:
        with vllm.paused("d1", "d2"):
            asked = asyncio.create_task(ask_streamed(vllm.http, router.url, *chat(PROMPT)))
            await vllm.until(lambda: worker_of(vllm, router, "decode"), "a D has the request")
            await vllm.kill(await worker_of(vllm, router, "decode"))
        assert await asked == wanted
        await vllm.until_free("p1")


async def test_d_dies_amid_a_stream(vllm: VllmStack) -> None:
    await vllm.need(*TWO_D)
    request = chat(PROMPT, 200, ignore_eos=True)
    wanted = await ask(vllm.http, vllm.url("d1"), *request)
    async with vllm.router([vllm.address("p1")], [vllm.address("d1"), vllm.address("d2")]) as router:
        async with streamed(vllm.http, router.url, *request) as response:
            stream = Stream(response)
            await stream.read(5)
            victim = await worker_of(vllm, router, "decode")
            with vllm.paused(victim):
                await vllm.kill(victim)
            assert await stream.read() == wanted
        await vllm.until_free("p1")


async def test_p_dies_while_its_request_is_held(vllm: VllmStack) -> None:
    await vllm.need("p1", "p2", "d1")
    wanted = await ask(vllm.http, vllm.url("d1"), *chat(PROMPT))
    addresses = [vllm.address("p1"), vllm.address("p2")]
    async with vllm.router(addresses, [vllm.address("d1", 1)], token_timeout_s=300) as router:
        async with occupied(vllm, router, "d1"):
            held = asyncio.create_task(ask(vllm.http, router.url, *chat(PROMPT)))
            await vllm.until_held(router)
            await vllm.kill(await worker_of(vllm, router, "prefill", "held"))
        assert await held == wanted
        await vllm.until_free("d1")
