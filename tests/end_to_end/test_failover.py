"""Decode workers die under streams, and the clients see what they would have seen anyway. Real processes, SIGKILL."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from baton_serve.baton.cluster.process import stopped
from baton_serve.router.request.attempts import CLEARED_AFTER_TOKENS
from tests.end_to_end.conftest import flags_with
from tests.kits.whole import reference
from tests.kits.whole.stack import MODEL, Stack, eventually
from tests.kits.whole.streams import (
    COMPLETIONS,
    NUM_BEFORE,
    NUM_TOKENS,
    Counts,
    all_at_once,
    asks,
    nothing,
    resumed,
)

pytestmark = [pytest.mark.faults, pytest.mark.timeout(400)]


@pytest_asyncio.fixture(scope="module", loop_scope="package")
async def stack(tmp_path_factory: pytest.TempPathFactory, adapters: dict[str, Path]) -> AsyncIterator[Stack]:
    folder = tmp_path_factory.mktemp("failover")
    flags = {"worker_flags": flags_with(adapters)}
    router = {"token-timeout-s": 5, "max-worker-deaths": 3, "pick-decode": "least_loaded"}
    async with Stack(folder, decode=2, router_flags=router, **flags) as running:
        yield running


async def kill(stack: Stack, worker: str) -> None:
    os.kill(stack.workers.pop(worker).pid, signal.SIGKILL)


async def test_a_d_is_killed_under_many_streams(stack: Stack) -> None:
    """Some of these are of adapters."""
    models = [MODEL, "tuned", MODEL, "other"]
    wanted = [(path, {**body, "model": models[seed]}) for seed in range(4) for path, body in asks(seed)]
    quiet = await all_at_once(stack, wanted, nothing)
    assert [await resumed(stack), quiet[0]["usage"]["completion_tokens"]] == [0, NUM_TOKENS]
    hits = await stack.metric("prefill-0", "baton_worker_prefix_cache_hits_total")
    assert await all_at_once(stack, wanted, lambda _: kill(stack, "decode-0")) == quiet
    assert await resumed(stack) >= len(wanted) // 4
    assert await stack.metric("prefill-0", "baton_worker_prefix_cache_hits_total") > hits
    await stack.until_gone()
    await stack.until_idle()


async def test_two_are_killed_one_after_the_other(stack: Stack) -> None:
    """There is one left; the second one to die has the streams of the first."""
    for name in ("late-0", "late-1"):
        await stack.start_worker(name, {"role": "decode"})
    await stack.routable(4)
    wanted = asks(11) + asks(12)
    quiet = await all_at_once(stack, wanted, nothing)
    before = await resumed(stack)

    async def strike(_: Counts) -> None:
        await kill(stack, "decode-1")
        await eventually(moved)
        await kill(stack, "late-0")

    async def moved() -> bool:
        return await resumed(stack) > before

    assert await all_at_once(stack, wanted, strike) == quiet
    await stack.until_gone()
    await stack.until_idle()


async def test_a_d_that_stands_still_is_left(stack: Stack) -> None:
    """And when it goes on, nobody reads it: its connections are closed, so it aborts."""
    await stack.start_worker("still", {"role": "decode"})
    await stack.routable(3)
    wanted = asks(21) + asks(22)
    quiet = await all_at_once(stack, wanted, nothing)
    before = await resumed(stack)
    pid = stack.workers["still"].pid
    async with AsyncExitStack() as exit_stack:

        async def stand_still(_: Counts) -> None:
            exit_stack.enter_context(stopped(pid))

        assert await all_at_once(stack, wanted, stand_still) == quiet
    assert await resumed(stack) > before
    await stack.until_gone()
    await stack.until_idle()


async def test_no_p_is_left(stack: Stack) -> None:
    """A D that dies then is replaced by one that computes everything itself, and who comes anew is served too."""
    wanted = asks(31) + asks(32)
    quiet = await all_at_once(stack, wanted, nothing)
    before = await resumed(stack)

    async def strike(_: Counts) -> None:
        await kill(stack, "prefill-0")
        await kill(stack, "still")

    assert await all_at_once(stack, wanted, strike) == quiet
    assert await resumed(stack) > before
    assert await all_at_once(stack, wanted, nothing) == quiet
    await stack.until_gone()
    await stack.until_idle()


async def streams_on(stack: Stack, name: str) -> set[str]:
    """Ids of the requests that this D has."""
    worker_id = stack.workers[name].worker_id
    return {row["id"] for row in await stack.requests() if row["decode_worker"] == worker_id}


async def test_a_stream_that_had_got_further_outlives_a_second_d(tmp_path: Path) -> None:
    """As many die with it as may die of one, but it was well past the place where the first did."""
    router = {"pick-decode": "least_loaded"}
    async with Stack(tmp_path, decode=3, router_flags=router, worker_flags={"dtype": "float32"}) as stack:
        # Not 42: at token 811 of one of its answers two tokens are as likely as each other up to a rounding of float32.
        wanted = [(path, {**body, "max_tokens": 6 * NUM_TOKENS}) for path, body in asks(41) + asks(43)]
        quiet = await all_at_once(stack, wanted, nothing)
        twice: set[str] = set()

        async def strike(counts: Counts) -> None:
            first = await streams_on(stack, "decode-0")
            await kill(stack, "decode-0")
            await counts.more(CLEARED_AFTER_TOKENS + 2)
            twice.update(first & await streams_on(stack, "decode-1"))
            await kill(stack, "decode-1")

        assert await all_at_once(stack, wanted, strike) == quiet
        assert twice, "those of the first are spread over the others"
        await stack.until_gone()
        await stack.until_idle()


async def cut_in_two(stack: Stack, body: dict[str, Any]) -> tuple[str, str]:
    """An answer's text up to the middle of a token that comes after those of ``NUM_BEFORE`` chunks, and the rest."""
    keys = ("prompt", "max_tokens", "ignore_eos", "temperature", "seed")
    (choice,) = (await stack.complete(**{key: body[key] for key in keys}, logprobs=1))["choices"]
    text, offsets = choice["text"], choice["logprobs"]["text_offset"]
    starts = zip(offsets[3 * NUM_BEFORE :], offsets[3 * NUM_BEFORE + 1 :], strict=False)
    cut = next(start + 1 for start, end in starts if end - start > 1)
    return text[:cut], text[cut:]


async def test_a_stop_string_spans_the_place_where_d_dies(tmp_path: Path) -> None:
    """The client has half of the token with which it begins; D dies long before it is complete."""
    async with Stack(tmp_path, decode=3, worker_flags={"dtype": "float32"}) as stack:

        async def strike(_: Counts) -> None:
            (name,) = [name for name in stack.workers if "decode" in name and await streams_on(stack, name)]
            metric = "baton_worker_decode_tokens_total"
            far = await stack.metric(name, metric) + 5 * NUM_BEFORE

            async def is_far() -> bool:
                return await stack.metric(name, metric) >= far

            await eventually(is_far)
            await kill(stack, name)

        for num_resumed, temperature in enumerate((0, 1)):
            body = {**asks(51)[1][1], "temperature": temperature, "max_tokens": 2 * NUM_TOKENS}
            del body["frequency_penalty"]
            before, stop = await cut_in_two(stack, body)
            wanted = [(COMPLETIONS, {**body, "stop": ["qzx", stop]})]
            quiet = await all_at_once(stack, wanted, nothing)
            assert (quiet[0]["text"], quiet[0]["finish"]) == (before, ["stop"])
            assert await resumed(stack) == num_resumed
            assert await all_at_once(stack, wanted, strike) == quiet
            assert await resumed(stack) == num_resumed + 1
        await stack.until_gone()
        await stack.until_idle()


#: Whoever stands still stays in the registry.
STAYS = {"dtype": "float32", "registry-ttl-ms": 60_000}


async def test_the_only_d_is_asked_again(tmp_path: Path) -> None:
    """It stands still until the router asks it again under the same request id. Then it goes on, with two requests of
    one id before it: the newer one counts, and the client sees what it would have seen anyway.
    """
    async with Stack(tmp_path, worker_flags=STAYS, router_flags={"token-timeout-s": 2}) as stack:
        # More at once than later, so that a connection is kept on which the newer request comes right away.
        both = asks(51) + asks(52)
        wanted, quiet = both[:3], (await all_at_once(stack, both, nothing))[:3]
        assert quiet[0]["usage"]["completion_tokens"] == NUM_TOKENS

        async def stand_still(_: Counts) -> None:
            with stopped(stack.workers["decode-0"].pid):
                await stack.until_state("reading", count=len(wanted))

        before = await resumed(stack)
        assert await all_at_once(stack, wanted, stand_still) == quiet
        assert await resumed(stack) >= before + len(wanted)
        await stack.until_gone()
        await stack.until_idle()


async def test_the_only_p_is_asked_again(tmp_path: Path) -> None:
    """It stands still in the middle of a step, with the first request in its engine and the second in its socket."""
    router = {"prefill-timeout-s": 2}
    async with Stack(tmp_path, worker_flags=STAYS, router_flags=router) as stack:
        prompt = reference.prompt_of(150, seed=7)
        with stopped(*stack.ranks("prefill-0")) as rank_goes_on:
            asked = asyncio.create_task(stack.tokens(prompt, max_tokens=20))
            await eventually(lambda: _runs(stack, "prefill-0"))
            with stopped(stack.workers["prefill-0"].pid):
                await eventually(lambda: _is_asked_again(stack))
                rank_goes_on()
            found = await asked
        assert found == await stack.tokens(prompt, max_tokens=20)
        assert await _num_retries(stack) >= 1
        await stack.until_gone()
        await stack.until_idle()


async def _runs(stack: Stack, worker: str) -> bool:
    return bool((await stack.cluster.state(worker))["load"]["running"])


async def _is_asked_again(stack: Stack) -> bool:
    (row,) = await stack.requests()
    return row["state"] == "prefilling" and await _num_retries(stack) >= 1


async def _num_retries(stack: Stack) -> float:
    return await stack.metric("router", "baton_router_retries_total", leg="prefill")
