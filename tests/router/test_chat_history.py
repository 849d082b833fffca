"""Answers that the ``openai`` client got here go back as history, whichever way a program copies them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletionMessage

from tests.kits.router.cluster import Cluster

#: What the fields of OpenAI's answers are when nothing is in them.
NOTHING = {"refusal": None, "annotations": [], "audio": None, "function_call": None, "tool_calls": None}
QUESTION = {"role": "user", "content": "hi"}


@pytest.mark.parametrize(
    "copied",
    [
        lambda message: message,
        lambda message: message.model_dump(),
        lambda message: message.model_dump(exclude_none=True),
        lambda message: message.model_dump(exclude_unset=True),
        lambda message: {**message.model_dump(), "reasoning_content": "hm", "provider_specific_fields": {}},
        lambda message: {"role": message.role, "content": [{"type": "text", "text": message.content}]},
    ],
    ids=["itself", "dumped", "without nulls", "what was set", "another vendor's", "parts"],
)
@pytest.mark.parametrize("fields", [{}, NOTHING], ids=["few fields", "all fields"])
async def test_an_answer_goes_back_as_history_however_it_is_copied(
    cluster: Cluster, copied: Callable[[ChatCompletionMessage], Any], fields: dict[str, Any]
) -> None:
    p, d = await cluster.fleet("prefill", "decode")
    d.message_fields = fields
    async with AsyncOpenAI(base_url=f"{cluster.url}/v1", api_key="none", max_retries=0) as client:
        messages: list[Any] = [QUESTION]
        first = await client.chat.completions.create(model="m", messages=messages, max_tokens=4)
        messages += [copied(first.choices[0].message), QUESTION]
        second = await client.chat.completions.create(model="m", messages=messages, max_tokens=4)
    assert second.choices[0].message.content == first.choices[0].message.content
    for worker in (p, d):
        (user, assistant, _) = worker.bodies[-1]["messages"]
        assert user == QUESTION
        assert assistant.keys() - {"reasoning_content", "reasoning"} == {"role", "content"}
        assert assistant["role"] == "assistant"


@pytest.mark.parametrize("ours", [True, False])
@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
async def test_reasoning_goes_on_under_both_names(cluster: Cluster, ours: bool, name: str) -> None:
    """vLLM knows the longer one before 0.16, and the shorter one since then. Its answers stay as they are."""
    d = await cluster.add("both", ours=ours)
    d.message_fields = {name: "so"}
    said = {"role": "assistant", "content": "yes", name: "hm"}
    answer = await cluster.post({"model": "m", "messages": [QUESTION, said, QUESTION], "max_tokens": 4})
    assert answer.json()["choices"][0]["message"][name] == "so"
    (_, assistant, _) = d.bodies[-1]["messages"]
    assert assistant == {**said, "reasoning": "hm", "reasoning_content": "hm"}


async def test_the_bodies_that_workers_are_sent_are_plain(cluster: Cluster) -> None:
    """Another engine would make something of it, and two prompts that differ in it alone begin the same."""
    p, d = await cluster.fleet("prefill", "decode")
    marked = {**QUESTION, "cache_control": {"type": "ephemeral"}}
    assert (await cluster.post({"model": "m", "messages": [marked], "max_tokens": 4})).status_code == 200
    asked = {"model": "m", "prompt": ["hi"], "logprobs": False, "max_tokens": 4}
    assert (await cluster.post(asked, "/v1/completions")).status_code == 200
    for worker in (p, d):
        assert worker.bodies[0]["messages"] == [QUESTION]
        assert (worker.bodies[1]["prompt"], "logprobs" in worker.bodies[1]) == ("hi", False)
