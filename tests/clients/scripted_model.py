"""A worker without a model: it answers chats by scripts, for agents that the demo model is too small for.

A script is a JSON list of rules, and its file's name the model's::

    [{"role": "user", "has": "turn (\\d+)", "call": "Bash", "arguments": {"command": "echo of-turn-\\1"}},
     {"role": "tool", "has": "of-turn-(\\d+)", "say": "The tool said \\1."}]

The first rule counts that finds its pattern in a message of its role which came after the model spoke last. ``say``
and the strings in ``arguments`` may name groups of the pattern. Nothing is kept between requests, and no rule is ever
used up, so that an agent may ask whatever else it wants, and again. A chat for which there is no rule is answered with
``NO_RULE``, and so is one in which a rule calls a tool that the chat has not.

``python -m tests.clients.scripted_model SCRIPT.json ...`` prints its address, and serves until its input ends.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from aiohttp import web

NO_RULE = "The script has no rule for this."
#: Bytes of the largest body: agents send all of their history.
_MAX_BODY = 1 << 26
#: Characters of one piece of a stream.
_PIECE_CHARS = 5


@dataclass(frozen=True)
class Rule:
    """One rule: in messages of ``role`` that have the pattern ``has``, say something, or call a tool."""

    role: str
    has: str
    say: str = ""
    call: str = ""
    arguments: dict[str, Any] = field(default_factory=dict)

    def answer(self, message: dict[str, Any], tools: Sequence[str]) -> dict[str, Any] | None:
        """The message that answers; None: the rule does not fit."""
        found = re.search(self.has, _text(message)) if message["role"] == self.role else None
        if found is None or (self.call and self.call not in tools):
            return None
        if not self.call:
            return {"role": "assistant", "content": found.expand(self.say)}
        function = {"name": self.call, "arguments": json.dumps(_expanded(self.arguments, found))}
        call = {"id": f"call_{uuid.uuid4().hex}", "type": "function", "function": function}
        return {"role": "assistant", "content": None, "tool_calls": [call]}


class ScriptedModel:
    """``async with ScriptedModel(scripts) as model``: serves at ``model.url``, a model for each script."""

    def __init__(self, scripts: Iterable[Path]) -> None:
        self._rules = {path.stem: [Rule(**rule) for rule in json.loads(path.read_text())] for path in scripts}
        self.url = ""

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=_MAX_BODY)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/tokenize", self._tokenize)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/health", self._health)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = "http://{}:{}".format(*self._runner.addresses[0][:2])
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        message = self._answer(body)
        head = {"id": f"chatcmpl-{uuid.uuid4().hex}", "created": int(time.time()), "model": body["model"]}
        finish = "tool_calls" if "tool_calls" in message else "stop"
        usage = {"prompt_tokens": _num_tokens(body["messages"]), "completion_tokens": _num_tokens(message)}
        usage["total_tokens"] = sum(usage.values())
        if not body.get("stream"):
            choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish}
            return web.json_response({**head, "object": "chat.completion", "choices": [choice], "usage": usage})
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for choices in (*_chunks(message, finish), []):
            chunk = {**head, "object": "chat.completion.chunk", "choices": choices}
            counts = {} if choices else {"usage": usage}
            await response.write(b"data: %b\n\n" % json.dumps({**chunk, **counts}).encode())
        await response.write(b"data: [DONE]\n\n")
        return response

    def _answer(self, body: dict[str, Any]) -> dict[str, Any]:
        tools = [tool["function"]["name"] for tool in body.get("tools") or ()]
        new = list(_since_last_answer(body["messages"]))
        for rule in self._rules[body["model"]]:
            for message in new:
                if (answer := rule.answer(message, tools)) is not None:
                    return answer
        return {"role": "assistant", "content": NO_RULE}

    async def _tokenize(self, request: web.Request) -> web.Response:
        num_tokens = _num_tokens((await request.json())["messages"])
        tokens = list(range(num_tokens))
        return web.json_response({"count": num_tokens, "max_model_len": 1 << 20, "tokens": tokens, "token_strs": None})

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": name, "object": "model"} for name in self._rules]})

    async def _health(self, _: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})


def _since_last_answer(messages: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The messages after the last one of the assistant, newest first."""
    for message in reversed(messages):
        if message["role"] == "assistant":
            return
        yield message


def _text(message: dict[str, Any]) -> str:
    content = message["content"]
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content)


def _expanded(value: Any, found: re.Match[str]) -> Any:
    if isinstance(value, str):
        return found.expand(value)
    if isinstance(value, list):
        return [_expanded(one, found) for one in value]
    return {name: _expanded(one, found) for name, one in value.items()} if isinstance(value, dict) else value


def _chunks(message: dict[str, Any], finish: str) -> Iterator[list[dict[str, Any]]]:
    """The choices of each chunk of a stream."""
    yield _choice({"role": "assistant", "content": ""})
    for piece in _pieces(message["content"] or ""):
        yield _choice({"content": piece})
    for index, call in enumerate(message.get("tool_calls", ())):
        arguments = call["function"]["arguments"]
        begun = {**call, "index": index, "function": {**call["function"], "arguments": ""}}
        yield _choice({"tool_calls": [begun]})
        for piece in _pieces(arguments):
            yield _choice({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    yield _choice({}, finish)


def _choice(delta: dict[str, Any], finish: str | None = None) -> list[dict[str, Any]]:
    return [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}]


def _pieces(text: str) -> Iterator[str]:
    for start in range(0, len(text), _PIECE_CHARS):
        yield text[start : start + _PIECE_CHARS]


def _num_tokens(said: Any) -> int:
    """Words of the JSON: there is no tokenizer, and clients only need counts that grow."""
    return len(json.dumps(said).split())


async def _serve(scripts: list[Path]) -> None:
    async with ScriptedModel(scripts) as model:
        print(model.url, flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(_serve([Path(path) for path in sys.argv[1:]]))
