"""Many streams at once: what each said, and something that is done to their workers meanwhile."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, Self

from tests.kits.whole import reference
from tests.kits.whole.stack import MODEL, Stack

NUM_TOKENS = 320
#: By how much a logprob may differ that another program computed: many times a float32's sums in another order.
TOLERANCE = 1e-3
#: Chunks that every client has before somebody dies.
NUM_BEFORE = 12
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


def asks(seed: int) -> list[tuple[str, dict[str, Any]]]:
    """One of each kind: greedy, seeded with penalties, chat with logprobs, and one with stop strings."""
    common = {
        "model": MODEL,
        "max_tokens": NUM_TOKENS,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    prompt = reference.prompt_of(70, seed=seed)
    chat = {"messages": [{"role": "user", "content": f"Tell me about number {seed}, please."}]}
    return [
        (COMPLETIONS, {**common, "prompt": prompt, "temperature": 0}),
        (COMPLETIONS, {**common, "prompt": prompt, "temperature": 1, "seed": seed, "frequency_penalty": 0.5}),
        (CHAT, {**common, **chat, "temperature": 1, "seed": seed, "logprobs": True, "top_logprobs": 2}),
        (COMPLETIONS, {**common, "prompt": prompt, "temperature": 1, "seed": seed, "stop": ["qzx", "\u0000"]}),
    ]


async def both_ways(stack: Stack, both: Stack, **asked: Any) -> dict[str, Any]:
    """The choice that P and D give together, which is the one that a single worker gives."""
    options = {"prompt": reference.prompt_of(50, seed=11), "return_token_ids": True, **asked}
    split, whole = [(await one.complete(**options))["choices"][0] for one in (stack, both)]
    assert split == whole
    return dict(split)


def chunks_of(text: str) -> list[dict[str, Any]]:
    """The chunks of a whole stream."""
    *events, end = [line[6:] for line in text.split("\n") if line.startswith("data: ")]
    assert end == "[DONE]", end
    return [json.loads(event) for event in events]


async def lines(stack: Stack, path: str, body: dict[str, Any], count: Count, url: str | None = None) -> list[str]:
    """The lines of a stream of a router (by default the first one) or a worker, counted as they come."""
    found = []
    with count:
        async with stack.http.stream("POST", f"{url or stack.router.url}{path}", json=body) as response:
            assert response.status_code == 200
            async for line in response.aiter_lines():
                if line:
                    found.append(line)
                    count.one_more()
    return found


class Near:
    """Equal to one that is ``TOLERANCE`` away or nearer; a rounded number is not equal to one across the boundary."""

    def __init__(self, logprob: float) -> None:
        self.logprob = logprob

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Near) and abs(self.logprob - other.logprob) <= TOLERANCE

    def __repr__(self) -> str:
        return f"Near({self.logprob})"

    __hash__ = None  # type: ignore[assignment]


def gist(found: list[str]) -> dict[str, Any]:
    """What must not differ between two runs of a stream; its form is checked."""
    assert all(line.startswith("data: ") for line in found), "what is between router and worker stays there"
    assert found[-1] == "data: [DONE]", found[-1]
    chunks = [json.loads(line[6:]) for line in found[:-1]]
    assert not any("error" in chunk for chunk in chunks), chunks[-1]
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    deltas = [choice["delta"] for choice in choices if "delta" in choice]
    entries = [entry for choice in choices for entry in (choice["logprobs"] or {}).get("content", ())]
    usage = chunks[-1]["usage"]
    del usage["prompt_tokens_details"]  # what was in whose cache may differ
    return {
        "text": "".join(choice.get("text", "") for choice in choices),
        "said": "".join(delta.get("content") or "" for delta in deltas),
        "roles": [delta["role"] for delta in deltas if "role" in delta],
        "tokens": [(entry["token"], Near(entry["logprob"])) for entry in entries],
        "finish": [choice["finish_reason"] for choice in choices if choice["finish_reason"]],
        "usage": usage,
    }


class Count:
    """How many chunks one stream has; a context in which the stream goes on."""

    def __init__(self, news: asyncio.Event) -> None:
        self.chunks = 0
        self.is_over = False
        self._news = news

    def one_more(self) -> None:
        self.chunks += 1
        self._news.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.is_over = True
        self._news.set()


class Counts:
    """How many chunks each of some streams has."""

    def __init__(self, num_streams: int) -> None:
        self._news = asyncio.Event()
        self.of = [Count(self._news) for _ in range(num_streams)]

    async def more(self, chunks: int) -> None:
        """Wait until each has so many more; a stream that ends before has none left to wait for, and fails the test."""
        wanted = [one.chunks + chunks for one in self.of]
        while late := [one for one, then in zip(self.of, wanted, strict=True) if one.chunks < then]:
            assert not any(one.is_over for one in late), "a stream was too short"
            self._news.clear()
            await self._news.wait()


async def all_at_once(
    stack: Stack, wanted: list[tuple[str, dict[str, Any]]], strike: Callable[[Counts], Awaitable[None]]
) -> list[dict[str, Any]]:
    """The gists of these streams. ``strike`` is awaited once each of them has begun well."""
    counts = Counts(len(wanted))
    async with asyncio.TaskGroup() as group:
        streams = [group.create_task(lines(stack, *one, count)) for one, count in zip(wanted, counts.of, strict=True)]
        await counts.more(NUM_BEFORE)
        await strike(counts)
    return [gist(stream.result()) for stream in streams]


async def nothing(_: Counts) -> None:
    """Nobody dies."""


async def resumed(stack: Stack) -> float:
    return await stack.metric("router", "baton_router_resumed_total", outcome="resumed")
