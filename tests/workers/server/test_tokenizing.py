"""/tokenize and /detokenize of a worker: vLLM's bodies and answers, and who may ask."""

from __future__ import annotations

from typing import Any

import pytest

from baton_serve.workers.server.answers.tokenizing import MAX_CONTEXTS
from tests.kits.worker.front import MAX_MODEL_LEN, MODEL, SECRET, fast_tokenizer, front, tokens_of

SIZE = fast_tokenizer().get_vocab_size()


async def test_a_text() -> None:
    async with front() as worker:
        for more in ({}, {"model": MODEL}, {"add_special_tokens": False}):
            answer = (await worker.http.post("/tokenize", json={"prompt": "the baton", **more})).json()
            tokens = tokens_of("the baton")
            limit = {"max_model_len": MAX_MODEL_LEN, "token_strs": None}
            assert answer == {"count": len(tokens), "tokens": tokens, **limit}


async def test_more_tokens_than_fit_are_counted() -> None:
    async with front() as worker:
        answer = (
            await worker.http.post("/tokenize", json={"prompt": "x " * 2 * MAX_MODEL_LEN, "return_token_strs": True})
        ).json()
        assert answer["count"] == len(answer["tokens"]) == len(answer["token_strs"]) > MAX_MODEL_LEN


async def test_far_more_tokens_are_refused() -> None:
    most = MAX_CONTEXTS * MAX_MODEL_LEN
    async with front() as worker:
        for path, body, param in (
            ("/tokenize", {"prompt": "x " * most}, "prompt"),
            ("/tokenize", {"messages": [{"role": "user", "content": "x " * most}]}, "messages"),
            ("/detokenize", {"tokens": [5] * (most + 1)}, "tokens"),
        ):
            answer = await worker.http.post(path, json=body)
            error = answer.json()["error"]
            assert (answer.status_code, error["param"], error["code"]) == (400, param, "too_many_tokens")
            assert error["message"].count(" tokens") == 1 and f"; at most {most} are taken here" in error["message"]
        assert (await worker.http.post("/detokenize", json={"tokens": [5] * most})).status_code == 200


async def test_a_chat() -> None:
    async with front() as worker:
        messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "you"}]
        answer = (await worker.http.post("/tokenize", json={"messages": messages})).json()
        assert answer["tokens"] == tokens_of("[user] hi\n[assistant] you\n")


async def test_tokens_become_the_text_that_they_are() -> None:
    async with front() as worker:
        for text in ("the baton \u20ac", "", "x " * MAX_MODEL_LEN):
            answer = await worker.http.post("/detokenize", json={"model": MODEL, "tokens": tokens_of(text)})
            assert answer.json() == {"prompt": text}
        assert (await worker.http.post("/detokenize", json={"tokens": [0, 1]})).json() == {"prompt": "<s></s>"}


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("/tokenize", {}, 400, "prompt"),
        ("/tokenize", {"prompt": 5}, 400, "prompt"),
        ("/tokenize", {"prompt": "x", "messages": [{"role": "user", "content": "x"}]}, 400, "prompt"),
        ("/tokenize", {"prompt": "x", "unknown": 1}, 400, "unknown"),
        ("/tokenize", {"prompt": "x", "model": "other"}, 404, "model"),
        ("/tokenize", {"messages": []}, 400, "messages"),
        ("/tokenize", {"messages": [{"role": "user", "content": "x"}], "chat_template": "x"}, 400, "chat_template"),
        ("/tokenize", {"messages": [{"role": "assistant", "content": "x"}]}, 400, "messages"),
        ("/detokenize", {}, 400, "tokens"),
        ("/detokenize", {"tokens": [-1]}, 400, "tokens[0]"),
        ("/detokenize", {"tokens": [SIZE]}, 400, "tokens"),
        ("/detokenize", {"tokens": "x"}, 400, "tokens"),
        ("/detokenize", {"tokens": [1], "model": "other"}, 404, "model"),
    ],
)
async def test_what_is_wrong_is_named(path: str, body: dict[str, Any], status: int, param: str) -> None:
    async with front() as worker:
        answer = await worker.http.post(path, json=body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (status, param)


async def test_only_the_router_may_ask_where_there_is_a_token() -> None:
    async with front(token=SECRET) as worker:
        for headers, status in (({}, 401), ({"x-baton-internal-token": SECRET}, 200)):
            answer = await worker.http.post("/detokenize", json={"tokens": []}, headers=headers)
            assert answer.status_code == status
