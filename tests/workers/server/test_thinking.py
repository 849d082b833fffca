"""Whether a model thinks: a variable of its chat template, or what it does anyway."""

from __future__ import annotations

from typing import Any

import pytest

from baton_serve.workers.parsers.message_format import MessageFormat
from tests.kits.worker.front import chat, front, text_of

PATH = "/v1/chat/completions"
#: Of a model that thinks, and of one that does not.
THINKS, PLAIN = MessageFormat("", None, "none", "qwen3"), MessageFormat("", None, "none", "none")
OWN_FIELDS: list[tuple[dict[str, Any], bool]] = [
    ({"thinking": {}, "content": {}}, True),
    ({"reasoning_content": {}}, True),
    ({"content": {}, "tool_calls": {}}, False),
]


@pytest.mark.parametrize(("asked", "given"), [("enabled", True), ("disabled", False)])
async def test_the_template_gets_it(asked: str, given: bool) -> None:
    async with front(chat_template="{{ enable_thinking }}") as worker:
        response = await worker.http.post(PATH, json=chat(thinking={"type": asked}))
        told = await worker.http.post("/tokenize", json={**chat(), "thinking": {"type": asked}, "max_tokens": None})
    assert response.status_code == 200
    prompt = text_of(worker.engine.requests[0].prompt_token_ids)
    assert prompt == f"[enable_thinking] {given}\n[user] hello\n"
    assert told.json()["tokens"] == worker.engine.requests[0].prompt_token_ids


async def test_a_variable_of_the_clients_own_comes_first() -> None:
    async with front(chat_template="{{ enable_thinking }}") as worker:
        body = chat(thinking={"type": "enabled"}, chat_template_kwargs={"enable_thinking": False})
        await worker.http.post(PATH, json=body)
    assert "[enable_thinking] False" in text_of(worker.engine.requests[0].prompt_token_ids)


@pytest.mark.parametrize(
    ("asked", "model", "noted"),
    [("enabled", THINKS, 0), ("disabled", THINKS, 1), ("enabled", PLAIN, 1), ("disabled", PLAIN, 0)],
)
async def test_a_template_without_a_variable_for_it(
    asked: str, model: MessageFormat, noted: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The log says once that it has no effect, unless the model does anyway what is asked for."""
    async with front(chat_template="{{ x }}", message_format=model) as worker:
        for _ in range(2):
            response = await worker.http.post(PATH, json=chat(thinking={"type": asked}))
            assert response.status_code == 200
    assert text_of(worker.engine.requests[0].prompt_token_ids) == "[user] hello\n"
    assert caplog.text.count("'thinking' of requests has no effect") == noted


@pytest.mark.parametrize("asked", [{"type": "adaptive"}, {"type": "enabled", "budget_tokens": 2000}, {}, "enabled"])
async def test_other_values_are_refused(asked: Any) -> None:
    async with front(chat_template="{{ enable_thinking }}") as worker:
        response = await worker.http.post(PATH, json=chat(thinking=asked))
    assert response.status_code == 400
    assert response.json()["error"]["param"].startswith("thinking")


@pytest.mark.parametrize(("fields", "thinks"), OWN_FIELDS)
def test_a_template_of_the_models_own_says_whether_it_thinks(fields: dict[str, Any], thinks: bool) -> None:
    assert MessageFormat("", {"fields": fields}).understands_reasoning is thinks
