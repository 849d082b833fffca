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
        ids = None if told is None else [int(one) for one in told.split(",")]
        events.append(Event(json.loads(data.removeprefix("data: ")), ids, at_end))
    return events


@dataclass
class Answer:
    """What a client makes of the chunks of one or more streams."""

    text: str = ""
    logprobs: list[Any] = field(default_factory=list)
    roles: int = 0
    finish_reason: str | None = None
    usage: dict[str, Any] | None = None
    same: set[tuple[Any, ...]] = field(default_factory=set)
    token_ids: list[int] = field(default_factory=list)

    def see(self, *events: Event) -> Answer:
        for event in events:
            self.token_ids += event.token_ids or []
            self.usage = event.chunk.get("usage") or self.usage
            for choice in event.chunk["choices"]:
                self._see_choice(choice)
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
        self.roles += "role" in choice.get("delta", ())
        self.text += said.get("text", said.get("content", ""))
        logprobs = choice["logprobs"] or {}
        self.logprobs += logprobs.get("content") or zip(
            *(logprobs.get(name, ()) for name in ("tokens", "token_logprobs", "text_offset")), strict=True
        )
        self.finish_reason = choice["finish_reason"]


async def ask(worker: Front, path: str, body: dict[str, Any], **params: Any) -> Any:
    """P's whole answer, or the events of a stream."""
    more: dict[str, Any] = {"kv_transfer_params": params} if params else {}
    is_prefill = params.get("do_remote_decode")
    more |= {"max_tokens": 1} if is_prefill else {"stream": True, "stream_options": {"include_usage": True}}
    headers = {**IDS, "x-request-id": REQUEST_ID}
    response = await worker.http.post(path, json={**body, **more}, headers=headers)
    assert response.status_code == 200, response.text
    return response.json() if is_prefill else events_of(response.text)
