"""Several routers as one, and what is left when one of them dies: nothing. Prints the milliseconds."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from signal import SIGKILL, SIGTERM
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from baton_serve.baton.cluster.process import stopped
from baton_serve.core.protocol.request_ids import owner_of
from tests.kits.patience import PATIENCE_S
from tests.kits.whole import reference
from tests.kits.whole.stack import MODEL, Stack, eventually

if TYPE_CHECKING:
    from tests.end_to_end.conftest import Timed

#: Several processes for each of two cores, and each answer is asked for a second time.
pytestmark = [pytest.mark.faults, pytest.mark.timeout(240)]
#: Leases so long that no expiry helps; whoever renews them has to know how long they are.
LEASE_MS = 60_000
#: Far less than that, and far more than any of these things takes.
SOON_S = 15.0
#: Tokens of a stream that a test leaves before its end: nearly all that fit into the model's context.
MANY_TOKENS = 7500
FLAGS = {"dtype": "float32", "lease-duration-ms": LEASE_MS}
ROUTER_FLAGS = {"lease-duration-ms": LEASE_MS}


class Streaming:
    """One answer through a router. ``text`` is what has come, ``error`` what came instead of the rest."""

    def __init__(self, stack: Stack, url: str, prompt: list[int], max_tokens: int) -> None:
        self.prompt, self.max_tokens = prompt, max_tokens
        self.text = ""
        self.num_events = 0
        self.error: dict[str, Any] | None = None
        #: The whole answer is here.
        self.is_done = False
        self._news = asyncio.Event()
        self._stack, self._url = stack, url

    async def __aenter__(self) -> Streaming:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.leave()

    async def leave(self) -> None:
        """The client goes."""
        self._task.cancel()
        await asyncio.wait({self._task})

    async def goes_on(self, num_events: int) -> None:
        """Wait until so many more events have come; it must not end before."""
        wanted = self.num_events + num_events
        async with asyncio.timeout(PATIENCE_S):
            while self.num_events < wanted:
                assert self.error is None and not self.is_done and not self._task.done()
                self._news.clear()
                await self._news.wait()

    async def over(self) -> None:
        """Wait until nothing comes any more: the end, an error, or a broken connection."""
        async with asyncio.timeout(120):
            await asyncio.wait({self._task})
        self._task.result()

    async def _run(self) -> None:
        options = {"max_tokens": self.max_tokens, "ignore_eos": True, "temperature": 0, "stream": True}
        body = {"model": MODEL, "prompt": self.prompt, **options}
        try:
            async with self._stack.http.stream("POST", f"{self._url}/v1/completions", json=body) as answer:
                if answer.status_code != 200:
                    self.error = json.loads(await answer.aread())["error"]
                    return
                async for line in answer.aiter_lines():
                    self._take(line.removeprefix("data: "))
        except httpx.TransportError:
            pass  # the router died
        finally:
            self._news.set()

    def _take(self, event: str) -> None:
        if event == "[DONE]":
            self.is_done = True
        elif event:
            parsed = json.loads(event)
            self.num_events += 1
            self._news.set()
            self.error = parsed.get("error", self.error)
            self.text += "".join(choice["text"] for choice in parsed.get("choices", ()))


class Crowd:
    """Streams through all routers of a stack."""

    def __init__(self, stack: Stack, exit_stack: AsyncExitStack) -> None:
        self._stack = stack
        self._exit = exit_stack
        self._seed = 0

    async def come(self, router: int, count: int, prompt_length: int, max_tokens: int = MANY_TOKENS) -> list[Streaming]:
        """So many clients, each with a prompt of its own."""
        url = self._stack.router_urls[router]
        streams = []
        for _ in range(count):
            self._seed += 1
            prompt = reference.prompt_of(prompt_length, seed=self._seed)
            streams.append(await self._exit.enter_async_context(Streaming(self._stack, url, prompt, max_tokens)))
        return streams


@asynccontextmanager
async def several(folder: Path, num_routers: int, **flags: Any) -> AsyncIterator[tuple[Stack, Crowd, list[str]]]:
    """So many routers, the clients of all of them, and the ids of the routers."""
    async with (
        Stack(folder, num_routers=num_routers, worker_flags=FLAGS, router_flags=ROUTER_FLAGS, **flags) as stack,
        AsyncExitStack() as clients,
    ):
        yield stack, Crowd(stack, clients), await router_ids(stack)


async def router_ids(stack: Stack) -> list[str]:
    """Who they are stands in the ids of their requests, also of one that is refused."""
    answers = [await stack.http.post(f"{url}/v1/completions", json={}) for url in stack.router_urls]
    return [owner_of(answer.headers["x-request-id"]) for answer in answers]


async def until_states(stack: Stack, router: int, router_id: str, **counts: int) -> None:
    """Wait until this router has so many requests in these states, and no other."""

    async def so() -> bool:
        rows = await stack.requests(stack.router_urls[router])
        return Counter(row["state"] for row in rows if owner_of(row["id"]) == router_id) == counts

    await eventually(so)


async def until_occupied(stack: Stack, router: int, worker: str, count: int) -> None:
    """Wait until this router knows of so many requests on the worker: of those of others it hears by reports."""

    async def so() -> bool:
        rows = await stack.known_workers(stack.router_urls[router])
        return any(row["url"] == stack.workers[worker].url and row["occupied"] == count for row in rows)

    await eventually(so)


async def until_runs(stack: Stack, worker: str, count: int) -> None:
    """Wait until the worker has so many sequences, all running."""

    async def so() -> bool:
        now = (await stack.cluster.state(worker))["load"]
        return bool((now["running"], now["waiting"], now["reading"]) == (count, 0, 0))

    await eventually(so)


async def assert_right(stack: Stack, streams: list[Streaming]) -> None:
    """Each has been given what the same request is answered when nothing else happens, or the beginning of that."""
    answers = await asyncio.gather(*(_again(stack, stream) for stream in streams))
    for stream, text in zip(streams, answers, strict=True):
        assert stream.text == text if stream.is_done else text.startswith(stream.text)


async def _again(stack: Stack, stream: Streaming) -> str:
    """Only as much as is needed of one that did not come to its end; a few tokens may have given no event."""
    num_tokens = stream.max_tokens if stream.is_done else min(stream.max_tokens, stream.num_events * 5 // 4 + 64)
    text = (await stack.complete(stream.prompt, max_tokens=num_tokens, ignore_eos=True))["choices"][0]["text"]
    assert isinstance(text, str)
    return text


async def test_a_killed_router_leaves_nothing_behind(tmp_path: Path, timed: Timed) -> None:
    """It has requests in four states: the streams of the others never notice, all its blocks are free."""
    flags = {"prefill_flags": {"max-num-batched-tokens": 64}, "decode_flags": {"max-num-seqs": 6}}
    async with several(tmp_path, 3, **flags) as (stack, crowd, ids):
        others = [*await crowd.come(0, 2, 60), *await crowd.come(2, 2, 90)]
        for router in (0, 2):
            await until_states(stack, router, ids[router], decoding=2)
        orphans = await crowd.come(1, 2, 120)
        await until_states(stack, 1, ids[1], decoding=2)
        orphans += await crowd.come(1, 3, 300)
        await until_states(stack, 1, ids[1], decoding=2, held=3)
        orphans += await crowd.come(1, 2, 3500, 3000)
        await until_states(stack, 1, ids[1], decoding=2, held=3, prefilling=2)
        assert (await stack.state("prefill-0"))["leases"] == 3
        assert [Counter(map(owner_of, await listed(stack, router))) for router in range(3)] == [
            {ids[0]: 2, ids[1]: 7, ids[2]: 2}
        ] * 3
        await stack.end_router(1, SIGKILL)
        async with asyncio.timeout(SOON_S):
            with timed("router killed: D decodes for the others only"):
                with timed("router killed: the blocks of three held and two prefilling requests free"):
                    await stack.until_idle("prefill-0")
                await until_runs(stack, "decode-0", 4)
        for orphan in orphans:
            await orphan.over()
            assert not orphan.is_done and orphan.error is None
        for router in (0, 2):
            await until_told(stack, router, num_workers=2)
        for stream in others:
            await stream.goes_on(20)
        await abort_through_another(stack, ids)
        for stream in others:
            await stream.over()
            assert stream.error is not None
        await stack.until_idle()
        await assert_right(stack, others)


async def listed(stack: Stack, router: int) -> list[str]:
    """The requests that this router knows of, all routers having been asked."""
    body = (await stack.http.get(f"{stack.router_urls[router]}/admin/requests")).json()
    assert body["unreachable_routers"] == []
    return [row["id"] for row in body["requests"]]


async def abort_through_another(stack: Stack, ids: list[str]) -> None:
    """One request of the first router through the last one, then all that are left through the first."""
    before = await listed(stack, 0)
    assert Counter(map(owner_of, before)) == {ids[0]: 2, ids[2]: 2}
    victim = next(request_id for request_id in before if owner_of(request_id) == ids[0])
    answer = await stack.http.post(f"{stack.router_urls[2]}/admin/requests/{victim}/abort")
    assert (answer.status_code, answer.json()["aborted"]) == (200, [victim])
    answer = await stack.http.post(f"{stack.router_urls[0]}/admin/abort", json={"all": True})
    assert sorted(answer.json()["aborted"]) == sorted(set(before) - {victim})
    assert answer.json()["unreachable_routers"] == []


async def until_told(stack: Stack, router: int, num_workers: int) -> None:
    """Wait until this router has told so many workers of one that is dead."""
    url = stack.router_urls[router]

    async def so() -> bool:
        return await stack.metric(url, "baton_router_dead_router_calls_total", outcome="told") == num_workers

    await eventually(so)
    assert await stack.metric(url, "baton_router_dead_routers_total") == 1


async def test_blocks_that_d_is_reading_for_a_killed_router_are_free_too(tmp_path: Path, timed: Timed) -> None:
    """D's rank stands still, so that no read ends: P's are free all the same, D's when NIXL is done with them."""
    async with several(tmp_path, 2) as (stack, crowd, ids):
        (other,) = await crowd.come(0, 1, 60)
        await until_states(stack, 0, ids[0], decoding=1)
        await stack.until_idle("prefill-0")  # D decodes before its notice that it has read reaches P
        with stopped(*stack.ranks("decode-0")) as go_on:
            await crowd.come(1, 3, 400)
            await until_states(stack, 1, ids[1], reading=3)
            assert (await stack.state("prefill-0"))["leases"] == 3
            await stack.end_router(1, SIGKILL)
            async with asyncio.timeout(SOON_S):
                with timed("router killed while D reads: P's blocks free"):
                    await stack.until_idle("prefill-0")
            go_on()
        await until_told(stack, 0, num_workers=2)
        await other.goes_on(20)
        await other.leave()
        await stack.until_idle()
        await assert_right(stack, [other])


async def test_a_router_that_stands_still_is_given_up_and_may_come_back(tmp_path: Path, timed: Timed) -> None:
    """Its connections stay open and it cannot be asked, so its presence has to run out first."""
    async with several(tmp_path, 2, decode_flags={"max-num-seqs": 4}) as (stack, crowd, ids):
        (other,) = await crowd.come(0, 1, 60)
        await until_states(stack, 0, ids[0], decoding=1)
        decoding = await crowd.come(1, 3, 100)
        await until_states(stack, 1, ids[1], decoding=3)
        await until_occupied(stack, 1, "decode-0", 4)  # else one of the next two may be sent to a D that is full
        held = await crowd.come(1, 2, 200, 40)
        await until_states(stack, 1, ids[1], decoding=3, held=2)
        for stream in decoding:  # what has no token yet would begin again, not go on
            await stream.goes_on(1)
        with stopped(stack.routers[1].pid):
            async with asyncio.timeout(SOON_S):
                with timed("router stopped: its blocks free"):
                    await stack.until_idle("prefill-0")
                    await until_runs(stack, "decode-0", 1)
            await until_told(stack, 0, num_workers=2)
        for stream in held:
            await stream.over()
            assert stream.is_done and stream.error is None
        for stream in decoding:  # what D had aborted goes on
            await stream.goes_on(20)
            await stream.leave()
        await other.leave()  # it may have ended meanwhile
        assert other.error is None
        metric = "baton_router_resumed_total"
        assert await stack.metric(stack.router_urls[1], metric, outcome="resumed") == len(decoding)
        await stack.until_idle()
        await assert_right(stack, [*decoding, *held, other])


async def test_a_router_that_leaves_in_order_lets_its_requests_finish(tmp_path: Path) -> None:
    async with several(tmp_path, 2, decode_flags={"max-num-seqs": 4}) as (stack, crowd, ids):
        streams = [*await crowd.come(0, 2, 60, 200), *await crowd.come(1, 2, 90, 200)]
        for router in (0, 1):
            await until_states(stack, router, ids[router], decoding=2)
        await until_occupied(stack, 1, "decode-0", 4)
        streams += await crowd.come(1, 2, 200, 50)
        await until_states(stack, 1, ids[1], decoding=2, held=2)
        assert "ended with exit code 0" in await stack.end_router(1, SIGTERM)
        for stream in streams:
            await stream.over()
            assert stream.is_done and stream.error is None
        await until_told(stack, 0, num_workers=2)
        for worker in stack.workers:
            assert await stack.metric(worker, "baton_worker_sequences_ended_total", state="aborted") == 0
        await stack.until_idle()
        await assert_right(stack, streams)
