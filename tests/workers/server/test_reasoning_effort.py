"""How long a model thinks: a variable of its chat template, or nothing that it could be told."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kits.worker.front import chat, front, text_of

PATH = "/v1/chat/completions"


@pytest.mark.parametrize(
    ("template", "effort", "more", "variables"),
    [
        ("{{ reasoning_effort }}", "low", {}, {"reasoning_effort": "low"}),
        ("{{ enable_thinking }}", "none", {}, {"enable_thinking": False}),
        (
            "{{ reasoning_effort }}{{ enable_thinking }}",
            "none",
            {},
            {"reasoning_effort": "none", "enable_thinking": False},
        ),
        (
            "{{ enable_thinking }}",
            "none",
            {"chat_template_kwargs": {"enable_thinking": True}},
            {"enable_thinking": True},
        ),
    ],
)
async def test_the_template_gets_it(
    template: str, effort: str, more: dict[str, Any], variables: dict[str, Any]
) -> None:
    async with front(chat_template=template) as worker:
        response = await worker.http.post(PATH, json=chat(reasoning_effort=effort, **more))
    assert response.status_code == 200
    prompt = text_of(worker.engine.requests[0].prompt_token_ids)
    assert prompt == "".join(f"[{name}] {value}\n" for name, value in variables.items()) + "[user] hello\n"


@pytest.mark.parametrize(("template", "effort"), [("", "low"), ("{{ enable_thinking }}", "high"), ("{{ x }}", "none")])
async def test_a_template_without_a_variable_for_it(
    template: str, effort: str, caplog: pytest.LogCaptureFixture
) -> None:
    """As with vLLM: agents send it whatever the model. The log says once that it has no effect."""
    async with front(chat_template=template) as worker:
        for _ in range(2):
            response = await worker.http.post(PATH, json=chat(reasoning_effort=effort))
            assert response.status_code == 200
    assert text_of(worker.engine.requests[0].prompt_token_ids) == "[user] hello\n"
    assert caplog.text.count("'reasoning_effort' of requests has no effect") == 1
