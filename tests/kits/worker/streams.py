"""Reads what a worker streams: the chunks, and the lines that tell which tokens an event accounts for."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from tests.kits.worker.front import Front

IDS = {"x-baton-token-ids": "1"}
REQUEST_ID = "ab" * 16


@dataclass
class Event:
    """``token_ids``: None without a line. ``at_end``: from ``:end`` on."""

    chunk: dict[str, Any]
    token_ids: list[int] | None
    at_end: bool


def events_of(body: str) -> list[Event]:
    """All events of a whole stream but the end mark."""
    events, at_end = [], False
    *parts, last = body.removesuffix("\n\n").split("\n\n")
    assert last == "data: [DONE]"
    for part in parts:
        *comments, data = part.split("\n")
        assert len(comments) <= 1 and not (comments and at_end)
        at_end = at_end or comments == [":end"]
        told = comments[0][1:] if comments and not at_end else None
        ids = None if told is None else [int(one) for one in told.split(",") if one]
        events.append(Event(json.loads(data.removeprefix("data: ")), ids, at_end))
    return events


@dataclass
class Answer:
    """What a client makes of the chunks of one or more streams."""

    text: str = ""
    reasoning: str = ""
    #: Of each tool call its id, name and arguments.
    calls: list[list[str]] = field(default_factory=list)
    logprobs: list[Any] = field(default_factory=list)
    roles: int = 0
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    usage: dict[str, Any] | None = None
    same: set[tuple[Any, ...]] = field(default_factory=set)
    token_ids: list[int] = field(default_factory=list)
    #: The ids that the client is shown.
    shown_ids: list[int] = field(default_factory=list)
    prompt_ids: list[list[int]] = field(default_factory=list)

    def see(self, *events: Event) -> Answer:
        for event in events:
            self.token_ids += event.token_ids or []
            self.usage = event.chunk.get("usage") or self.usage
            for choice in event.chunk["choices"]:
                self._see_choice(choice)
            for part in (event.chunk, *event.chunk["choices"]):
                self.prompt_ids += [part["prompt_token_ids"]] if "prompt_token_ids" in part else []
            self.same.add((event.chunk["id"], event.chunk["created"], event.chunk["model"]))
        return self

    def see_whole(self, body: dict[str, Any]) -> Answer:
        """P's answer, the text of which the router shows; how it ends counts only without a hand-off."""
        (choice,) = body["choices"]
        self._see_choice(choice)
        self.same.add((body["id"], body["created"], body["model"]))
        if "kv_transfer_params" in body:
            self.finish_reason = None
            self.token_ids.append(body["kv_transfer_params"]["first_token"])
        else:
            self.usage = body["usage"]
        return self

    def _see_choice(self, choice: dict[str, Any]) -> None:
        said = choice.get("delta", choice.get("message", choice))
        self.shown_ids += choice.get("token_ids", ())
        self.roles += "role" in choice.get("delta", ())
        self.text += said.get("text", said.get("content")) or ""
        self.reasoning += said.get("reasoning_content", "")
        assert said.get("reasoning") == said.get("reasoning_content"), "vLLM's name says the same"
        for index, call in enumerate(said.get("tool_calls", ())):
            if "id" in call:
                assert call.get("index", index) == len(self.calls) and call["type"] == "function"
                self.calls.append([call["id"], call["function"]["name"], ""])
            self.calls[call.get("index", index)][2] += call["function"]["arguments"]
        logprobs = choice["logprobs"] or {}
        self.logprobs += logprobs.get("content") or zip(
            *(logprobs.get(name, ()) for name in ("tokens", "token_logprobs", "text_offset")), strict=True
        )
        self.finish_reason, self.stop_reason = choice["finish_reason"], choice.get("stop_reason")


async def ask(worker: Front, path: str, body: dict[str, Any], **params: Any) -> Any:
    """P's whole answer, or the events of a stream."""
    more: dict[str, Any] = {"kv_transfer_params": params} if params else {}
    is_prefill = params.get("do_remote_decode")
    more |= {"max_tokens": 1} if is_prefill else {"stream": True, "stream_options": {"include_usage": True}}
    headers = {**IDS, "x-request-id": REQUEST_ID}
    response = await worker.http.post(path, json={**body, **more}, headers=headers)
    assert response.status_code == 200, response.text
    return response.json() if is_prefill else events_of(response.text)


async def go_on_plain(worker: Front, path: str, body: dict[str, Any], had: Answer) -> Answer:
    (_, created, _), *others = had.same
    assert not others
    return had.see(*await ask(worker, path, body, resume={"token_ids": had.token_ids, "created": created}))


async def go_on_by_hand_off(worker: Front, path: str, body: dict[str, Any], had: Answer) -> Answer:
    """As the router does it: P gives one token, D the rest. For one token alone there is no hand-off."""
    if len(had.token_ids) + 1 == body.get("max_tokens"):
        return await go_on_plain(worker, path, body, had)
    (_, created, _), *_ = had.same
    given = list(had.token_ids)
    first = await ask(worker, path, body, do_remote_decode=True, resume={"token_ids": given, "created": created})
    had.see_whole(first)
    if "kv_transfer_params" not in first:
        return had
    params = first["kv_transfer_params"]
    prompt = worker.engine.requests[0].prompt_token_ids
    assert (params["prompt_token_ids"], params["output_token_ids"]) == (prompt, given)
    assert params["remote_num_tokens"] == len(prompt) + len(given)
    return had.see(*await ask(worker, path, body, **params))


def parts(events: list[Event]) -> list[Answer]:
    """What a client may have had when the stream broke off: something, and not all."""
    before_end = [event for event in events if not event.at_end]
    return [Answer().see(*before_end[:count]) for count in range(1, len(before_end) + 1)]
