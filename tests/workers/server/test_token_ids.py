"""The lines that tell the router which tokens an event accounts for."""

from __future__ import annotations

import re
from typing import Any

import pytest

from baton_serve.workers.engine.api import ReadFailedError
from baton_serve.workers.server.answers import serving
from baton_serve.workers.server.answers.token_ids import TokenIdLines
from tests.kits.worker.front import EOS, TEXT, chat, completion, front, tokens_of
from tests.kits.worker.streams import IDS, Answer, ask

SCRIPT = [*tokens_of("\u4e2d " + TEXT), EOS]


@pytest.mark.parametrize("wish", [{}, {"stop": "has it. \u4e2d\u6587?"}, {"stop": "the baton"}, {"logprobs": True}])
async def test_the_data_is_the_same_and_the_tokens_add_up(wish: dict[str, Any]) -> None:
    async with front(SCRIPT) as worker:
        body = chat(stream=True, stream_options={"include_usage": True}, seed=1, **wish)
        headers = {"x-request-id": "aa"}
        plain = (await worker.http.post("/v1/chat/completions", json=body, headers=headers)).text
        told = (await worker.http.post("/v1/chat/completions", json=body, headers={**headers, **IDS})).text
        events = await ask(worker, "/v1/chat/completions", chat(seed=1, **wish))
    assert ":" not in {line[:1] for line in plain.split("\n")}
    without = "\n".join(line for line in told.split("\n") if not line.startswith(":"))
    assert drop_created(without) == drop_created(plain)
    seen = Answer().see(*events)
    assert seen.token_ids == SCRIPT[: len(seen.token_ids)]
    assert (seen.usage or {})["completion_tokens"] > len(seen.token_ids)
    for event in events:
        delta = event.chunk["choices"][0]["delta"] if event.chunk["choices"] else {}
        assert (event.token_ids is not None) == (bool(delta.get("content")) and not event.at_end)


def drop_created(body: str) -> str:
    """They were asked one after the other, perhaps in different seconds."""
    return re.sub(r'"created":\d+', "", body)


async def test_the_events_in_bytes() -> None:
    """The first character has three tokens, the last text comes with the end."""
    tokens = [*tokens_of("\u4e2da"), *tokens_of("b")]
    async with front(tokens) as worker:
        body = completion(stream=True, max_tokens=len(tokens))
        headers = {**IDS, "x-request-id": "aa"}
        text = (await worker.http.post("/v1/completions", json=body, headers=headers)).text
    lines = [line for line in text.split("\n") if line]
    kinds = [line if line.startswith(":") else line[:6] for line in lines]
    first = ",".join(map(str, tokens[:3]))
    assert kinds == [f":{first}", "data: ", f":{tokens[3]}", "data: ", ":end", "data: ", "data: ", "data: "]
    assert lines[-1] == "data: [DONE]"
    assert '"text":"b"' in lines[5]


@pytest.mark.parametrize("wish", [{}, {"logprobs": 1}])
@pytest.mark.parametrize("headers", [IDS, {}])
async def test_tokens_without_text_are_no_silence(
    wish: dict[str, Any], headers: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With logprobs they are not named: whoever goes on from there could not tell what they were."""
    monkeypatch.setattr(serving, "MAX_SILENCE_S", 0.0)
    mute, (a, b) = 0, tokens_of("ab")
    async with front([mute, mute, a, mute, b]) as worker:
        body = completion(stream=True, max_tokens=5, **wish)
        text = (await worker.http.post("/v1/completions", json=body, headers=headers)).text
    before_data = [event.partition("data: ")[0] for event in text.split("\n\n")][:5]
    if not headers:
        assert before_data == [":", ":", "", ":", ""]
    elif wish:
        assert before_data == [":", ":", f":{mute},{mute},{a}\n", ":", ":end\n"]
    else:
        assert before_data == [f":{mute}", f":{mute}", f":{a}\n", f":{mute}", ":end\n"]


async def test_text_in_time_needs_no_sign_of_life() -> None:
    async with front([0, 0, *tokens_of("ab")]) as worker:
        body = completion(stream=True, max_tokens=4)
        text = (await worker.http.post("/v1/completions", json=body)).text
    assert not any(line.startswith(":") for line in text.split("\n"))


async def test_p_s_first_token_is_not_told_again() -> None:
    async with front(SCRIPT) as worker:
        first = await ask(worker, "/v1/completions", completion(), do_remote_decode=True)
        events = await ask(worker, "/v1/completions", completion(), **first["kv_transfer_params"])
    told = Answer().see(*events).token_ids
    assert told == SCRIPT[1 : 1 + len(told)]


@pytest.mark.parametrize("headers", [{}, {"x-baton-token-ids": "0"}, {"x-baton-token-ids": ""}])
async def test_nobody_is_told_who_does_not_ask(headers: dict[str, str]) -> None:
    async with front(SCRIPT) as worker:
        text = (await worker.http.post("/v1/completions", json=completion(stream=True), headers=headers)).text
        assert not any(line.startswith(":") for line in text.split("\n"))


async def test_an_error_is_not_the_end() -> None:
    async with front(SCRIPT) as worker:
        worker.engine.error, worker.engine.error_after = ReadFailedError("gone"), 5
        text = (await worker.http.post("/v1/completions", json=completion(stream=True), headers=IDS)).text
        assert ":end" not in text
        assert text.split("\n\n")[-2].startswith('data: {"error":')


def test_lines_begin_where_they_are_made() -> None:
    tokens = [1, 2]
    lines = TokenIdLines(tokens)
    tokens += [30, 4]
    assert lines.next_line() == b":30,4\n"
    tokens.append(5)
    assert lines.next_line() == b":5\n"
