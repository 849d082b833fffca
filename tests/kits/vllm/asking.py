"""Asking for answers, of a router or of a server, streamed or not."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.kits.vllm.stack import MODEL, Router, VllmStack

#: Different lengths, across the boundaries of blocks of 32 tokens, up to a prompt of several prefill steps.
LENGTHS = (1, 3, 7, 12, 15, 16, 17, 25, 31, 33, 48, 64, 90, 127, 129, 200, 300, 450, 700, 1100)
_WORDS = "Baton keeps the blocks of a prompt until another worker has read them, and then it frees them at once. "


@dataclass
class Answer:
    """What a client got: the whole answer, or the part that has come so far."""

    text: str = ""
    finish_reason: str | None = None
    usage: tuple[int, int] | None = None
    error: Any = None
    status: int = 0
    #: Number of events with content.
    num_events: int = field(default=0, compare=False)


def prompts() -> list[str]:
    """Twenty prompts, no two of which begin alike."""
    return [f"{number}: {(_WORDS * (length // 20 + 1))[: 4 * length]}" for number, length in enumerate(LENGTHS)]


def chat(prompt: str, max_tokens: int = 16, **more: Any) -> tuple[str, dict[str, Any]]:
    """The path and the body of a greedy chat."""
    body = {"messages": [{"role": "user", "content": prompt}], "max_tokens": max_tokens, "temperature": 0}
    return "/v1/chat/completions", {"model": MODEL, **body, **more}


def completion(prompt: str, max_tokens: int = 16, **more: Any) -> tuple[str, dict[str, Any]]:
    """The path and the body of a greedy completion."""
    return "/v1/completions", {"model": MODEL, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, **more}


async def ask(http: httpx.AsyncClient, url: str, path: str, body: dict[str, Any]) -> Answer:
    """The answer to a request that is not streamed."""
    response = await http.post(f"{url}{path}", json=body)
    got = response.json()
    if response.status_code != httpx.codes.OK:
        return Answer(error=got.get("error", got), status=response.status_code)
    choice = got["choices"][0]
    usage = (got["usage"]["prompt_tokens"], got["usage"]["completion_tokens"])
    return Answer(_text(choice, "message"), choice["finish_reason"], usage, status=200)


class Stream:
    """A streamed answer, read event by event."""

    def __init__(self, response: httpx.Response) -> None:
        self.answer = Answer(status=response.status_code)
        self._lines = response.aiter_lines()

    async def read(self, num_events: int | None = None) -> Answer:
        """Read until this many events with content have come in all; None: to the end."""
        while num_events is None or self.answer.num_events < num_events:
            line = await anext(self._lines, None)
            if line is None or line == "data: [DONE]":
                break
            if line.startswith("data: "):
                self._take(json.loads(line.removeprefix("data: ")))
        return self.answer

    def _take(self, event: dict[str, Any]) -> None:
        if "error" in event:
            self.answer.error = event["error"]
        if usage := event.get("usage"):
            self.answer.usage = (usage["prompt_tokens"], usage["completion_tokens"])
        for choice in event.get("choices", []):
            text = _text(choice, "delta")
            self.answer.text += text
            self.answer.num_events += bool(text)
            self.answer.finish_reason = choice.get("finish_reason") or self.answer.finish_reason


def streamed(http: httpx.AsyncClient, url: str, path: str, body: dict[str, Any]) -> Any:
    """The context of the response to the same request, streamed, for ``Stream``."""
    body = {**body, "stream": True, "stream_options": {"include_usage": True}}
    return http.stream("POST", f"{url}{path}", json=body)


async def ask_streamed(http: httpx.AsyncClient, url: str, path: str, body: dict[str, Any]) -> Answer:
    """The whole answer to a streamed request."""
    async with streamed(http, url, path, body) as response:
        if response.status_code != httpx.codes.OK:
            got = json.loads(await response.aread())
            return Answer(error=got.get("error", got), status=response.status_code)
        return await Stream(response).read()


@asynccontextmanager
async def occupied(vllm: VllmStack, router: Router, name: str) -> AsyncIterator[None]:
    """A server that has a request and does not go on with it. In the end its client leaves, and the server goes on."""
    request = streamed(vllm.http, router.url, *chat("What is Baton?", 3000, ignore_eos=True))
    async with request as response:
        stream = Stream(response)  # kept to the end: without it, httpx would close the connection
        await stream.read(2)
        with vllm.paused(name):
            yield
        del stream


@asynccontextmanager
async def held(vllm: VllmStack, router: Router, prompt: str) -> AsyncIterator[asyncio.Task[Answer]]:
    """A chat that the router holds and ``p1`` keeps blocks for, since ``d1``, the only D, is occupied to the end of the
    block.
    """
    async with occupied(vllm, router, "d1"):
        asked = asyncio.create_task(ask(vllm.http, router.url, *chat(prompt)))
        await vllm.until_held(router)
        await vllm.until_holds("p1")
        yield asked


async def worker_of(vllm: VllmStack, router: Router, leg: str, state: str = "") -> str:
    """The name of the server that has a leg of the only request that is in this state; empty while there is none."""
    names = {vllm.address(name).partition("?")[0]: name for name in vllm.names}
    rows = [row for row in await vllm.requests(router) if not state or row["state"] == state]
    return next((names[row[f"{leg}_worker"]] for row in rows if row[f"{leg}_worker"]), "")


def _text(choice: dict[str, Any], place: str) -> str:
    return str((choice[place].get("content") if place in choice else choice.get("text")) or "")
