"""What ends an answer and why: stop tokens and stop strings, shown or not, on one worker and on P."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kits.worker.front import EOS, TEXT, chat, completion, fast_tokenizer, front, text_of, tokens_of
from tests.kits.worker.streams import Answer, ask

SCRIPT = [*tokens_of(TEXT), EOS]
FOURTH = SCRIPT[3]
#: The text before the first token that is equal to the fourth.
BEFORE = text_of(SCRIPT[: SCRIPT.index(FOURTH)])


@pytest.mark.parametrize(
    ("asked", "text", "reason"),
    [
        ({}, TEXT, None),
        ({"stop_token_ids": []}, TEXT, None),
        ({"stop_token_ids": [EOS]}, TEXT, None),
        ({"stop_token_ids": [EOS], "ignore_eos": True}, TEXT, EOS),
        ({"stop_token_ids": [2, FOURTH]}, BEFORE, FOURTH),
        ({"stop_token_ids": [FOURTH], "include_stop_str_in_output": True}, BEFORE + text_of([FOURTH]), FOURTH),
        ({"include_stop_str_in_output": True}, TEXT, None),  # the model's own end has no text
        ({"stop": " baton until"}, TEXT.partition(" baton until")[0], " baton until"),
        ({"stop": "bat", "include_stop_str_in_output": True}, TEXT.partition("bat")[0] + "bat", "bat"),
        ({"stop": TEXT[-2:], "include_stop_str_in_output": True}, TEXT, TEXT[-2:]),
    ],
)
async def test_the_end_and_its_reason(asked: dict[str, Any], text: str, reason: Any) -> None:
    async with front(SCRIPT) as worker:
        for path, body in (("/v1/completions", completion(max_tokens=100)), ("/v1/chat/completions", chat())):
            (choice,) = (await worker.http.post(path, json={**body, **asked})).json()["choices"]
            said = choice["text"] if "text" in choice else choice["message"]["content"]
            assert (said, choice["finish_reason"], choice["stop_reason"]) == (text, "stop", reason)
            streamed = Answer().see(*await ask(worker, path, {**body, **asked}))
            assert (streamed.text, streamed.finish_reason, streamed.stop_reason) == (text, "stop", reason)


async def test_a_prefill_that_ends_the_answer_says_why() -> None:
    async with front(SCRIPT) as worker:
        asked = {"stop_token_ids": [SCRIPT[0]], "kv_transfer_params": {"do_remote_decode": True}}
        body = (await worker.http.post("/v1/completions", json=completion(**asked))).json()
        (choice,) = body["choices"]
        assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == ("", "stop", SCRIPT[0])
        assert "kv_transfer_params" not in body and not worker.engine.held


async def test_min_tokens_bans_the_stop_tokens_too() -> None:
    async with front(SCRIPT) as worker:
        await worker.http.post("/v1/completions", json=completion(stop_token_ids=[9, 4], min_tokens=3))
        sampling = worker.engine.requests[0].sampling
        assert sampling.min_tokens_banned == (EOS, 4, 9)


async def test_words_are_banned_with_and_without_a_space() -> None:
    async with front(SCRIPT) as worker:
        await worker.http.post(
            "/v1/completions", json=completion(bad_words=["the", " runner"], allowed_token_ids=[5, 6])
        )
        sampling = worker.engine.requests[0].sampling
        assert sampling.allowed_token_ids == (5, 6)
        words = ("the", " the", "runner", " runner")
        assert set(sampling.bad_words) == {tuple(tokens_of(word)) for word in words}
        assert len({len(tokens_of(word)) for word in words}) > 1, "whatever the number of their tokens"


async def test_as_many_stop_strings_as_the_setting_allows() -> None:
    stop = [f"<{number}>" for number in range(63)] + [" baton until"]
    async with front(SCRIPT) as worker:
        response = await worker.http.post("/v1/completions", json=completion(stop=stop))
        assert response.json()["choices"][0]["text"] == TEXT.partition(" baton until")[0]
        response = await worker.http.post("/v1/completions", json=completion(stop=[*stop, "more"]))
        assert (response.status_code, response.json()["error"]["param"]) == (400, "stop")


async def test_a_temperature_that_float32_has_no_number_for() -> None:
    """Logits divided by infinity are no numbers where tokens are banned."""
    async with front(SCRIPT) as worker:
        response = await worker.http.post("/v1/completions", json=completion(temperature=1e300))
        assert response.status_code == 200
        assert 1e10 < worker.engine.requests[0].sampling.temperature < 1e30


@pytest.mark.parametrize("name", ["stop_token_ids", "allowed_token_ids"])
async def test_ids_outside_the_vocabulary_are_refused(name: str) -> None:
    async with front(SCRIPT) as worker:
        size = fast_tokenizer().get_vocab_size()
        response = await worker.http.post("/v1/completions", json=completion(**{name: [1, size]}))
        assert response.status_code == 400
        error = response.json()["error"]
        assert (error["param"], error["message"]) == (
            name,
            f"Token ids of '{name}' must be below {size}, the size of the vocabulary.",
        )
