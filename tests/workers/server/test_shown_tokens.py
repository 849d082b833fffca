"""Tokens and counts beside the text: ids in answers and streams, names in logprobs, usage in chunks, special tokens."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kits.worker.front import EOS, TEXT, chat, completion, front, text_of, tokens_of
from tests.kits.worker.streams import IDS, Answer, ask, events_of

PATHS = [("/v1/completions", completion(max_tokens=100)), ("/v1/chat/completions", chat())]
SCRIPT = [*tokens_of("\u4e2d" + TEXT), EOS]
BOS = 0


@pytest.mark.parametrize(("path", "body"), PATHS)
async def test_a_whole_answer_has_all_ids(path: str, body: dict[str, Any]) -> None:
    async with front(SCRIPT) as worker:
        answer = (await worker.http.post(path, json={**body, "return_token_ids": True})).json()
        prompt = worker.engine.requests[0].prompt_token_ids
    (choice,) = answer["choices"]
    assert choice["token_ids"] == SCRIPT
    assert (choice if "text" in choice else answer)["prompt_token_ids"] == prompt


@pytest.mark.parametrize("stop", [[], ["nothing of this"], [TEXT[-9:-2]]])
@pytest.mark.parametrize(("path", "body"), PATHS)
async def test_a_stream_has_every_id_once(path: str, body: dict[str, Any], stop: list[str]) -> None:
    """The ids of an event are those that its text accounts for; the prompt's come with the first event."""
    async with front(SCRIPT) as worker:
        events = await ask(worker, path, {**body, "return_token_ids": True, "stop": stop})
        prompt = worker.engine.requests[0].prompt_token_ids
    answer = Answer().see(*events)
    assert answer.prompt_ids == [prompt] and Answer().see(events[0]).prompt_ids == [prompt]
    assert answer.usage is not None and len(answer.shown_ids) == answer.usage["completion_tokens"]
    assert answer.shown_ids == SCRIPT[: len(answer.shown_ids)]
    for event in events:
        if event.token_ids is not None:
            assert event.chunk["choices"][0]["token_ids"] == event.token_ids


@pytest.mark.parametrize(("path", "body"), PATHS)
async def test_no_ids_unless_asked_for(path: str, body: dict[str, Any]) -> None:
    async with front(SCRIPT) as worker:
        answer = Answer().see(*await ask(worker, path, body))
        whole = await worker.http.post(path, json=body)
    assert (answer.shown_ids, answer.prompt_ids) == ([], []) and "token_ids" not in whole.text


async def test_tokens_named_by_their_ids() -> None:
    async with front(SCRIPT) as worker:
        asked = {"return_tokens_as_token_ids": True, "max_tokens": 4}
        whole = (await worker.http.post("/v1/completions", json=completion(logprobs=2, **asked))).json()
        logprobs = whole["choices"][0]["logprobs"]
        assert logprobs["tokens"] == [f"token_id:{token}" for token in SCRIPT[:4]]
        assert logprobs["top_logprobs"][0].keys() == {f"token_id:{SCRIPT[0]}", "token_id:5"}
        whole = (
            await worker.http.post("/v1/chat/completions", json=chat(logprobs=True, top_logprobs=1, **asked))
        ).json()
        content = whole["choices"][0]["logprobs"]["content"]
        assert [entry["token"] for entry in content] == logprobs["tokens"]
        assert b"".join(bytes(entry["bytes"]) for entry in content).decode(errors="ignore") == text_of(SCRIPT[:4])


@pytest.mark.parametrize(("path", "body"), PATHS)
async def test_every_event_may_have_the_usage_so_far(path: str, body: dict[str, Any]) -> None:
    async with front(SCRIPT) as worker:
        options = {"include_usage": True, "continuous_usage_stats": True}
        response = await worker.http.post(path, json={**body, "stream": True, "stream_options": options}, headers=IDS)
        num_tokens = 0
        for event in events_of(response.text):
            num_tokens += len(event.token_ids or ())
            usage = event.chunk["usage"]
            assert usage["completion_tokens"] == (len(SCRIPT) if event.at_end else num_tokens)
            assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
        options["include_usage"] = False
        refused = await worker.http.post(path, json={**body, "stream": True, "stream_options": options})
        assert refused.status_code == 400 and "needs 'include_usage'" in refused.json()["error"]["message"]


async def test_special_tokens_may_be_shown() -> None:
    words = tokens_of("ab")
    async with front([*words, BOS, BOS, *words, EOS]) as worker:
        for asked, text in (
            ({}, "abab"),
            ({"skip_special_tokens": False}, "ab<s><s>ab"),
            ({"skip_special_tokens": False, "spaces_between_special_tokens": False}, "ab<s><s>ab"),
            ({"skip_special_tokens": False, "include_stop_str_in_output": True}, "ab<s><s>ab</s>"),
            ({"skip_special_tokens": False, "stop": "<s>"}, "ab"),
        ):
            for path, body in PATHS:
                (choice,) = (await worker.http.post(path, json={**body, **asked})).json()["choices"]
                assert choice.get("text", choice.get("message", {}).get("content")) == text, asked
                assert Answer().see(*await ask(worker, path, {**body, **asked})).text == text, asked
