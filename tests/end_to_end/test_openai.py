"""What a user of the ``openai`` client sees."""

from __future__ import annotations

import asyncio

import openai
import pytest
from openai import AsyncOpenAI

from baton_serve.baton.demo.training.questions import QUESTIONS
from tests.kits.whole.stack import MODEL, Stack

#: Each has one wording only, so that greedy decoding has nothing to choose.
FACTS = [fact for fact in QUESTIONS if fact.id in {"hand_off", "first_token", "grant"}]


async def ask(client: AsyncOpenAI, question: str) -> str:
    answer = await client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": question}], temperature=0
    )
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    return answer.choices[0].message.content or ""


async def test_the_demo_model_answers_what_it_was_taught(client: AsyncOpenAI) -> None:
    answers = await asyncio.gather(*(ask(client, fact.ask[0]) for fact in FACTS))
    assert answers == [fact.answer for fact in FACTS]


async def test_a_conversation_goes_on_with_the_answers_as_they_came(client: AsyncOpenAI) -> None:
    messages: list[object] = [{"role": "user", "content": FACTS[0].ask[0]}]
    for fact in FACTS[1:]:
        answer = await client.chat.completions.create(model=MODEL, messages=messages, temperature=0)  # type: ignore[arg-type]
        messages += [answer.choices[0].message, {"role": "user", "content": fact.ask[0]}]
    answer = await client.chat.completions.create(model=MODEL, messages=messages, temperature=0)  # type: ignore[arg-type]
    assert answer.choices[0].message.content


async def test_a_streamed_chat_is_the_same_chat(client: AsyncOpenAI) -> None:
    fact = FACTS[0]
    stream = await client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": fact.ask[0]}],
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = [chunk async for chunk in stream]
    assert {chunk.id for chunk in chunks} == {chunks[0].id}
    assert {chunk.created for chunk in chunks} == {chunks[0].created}
    assert [chunk.choices[0].delta.role for chunk in chunks if chunk.choices].count("assistant") == 1
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == fact.answer
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
    usage = chunks[-1].usage
    assert usage is not None and chunks[-1].choices == []
    assert usage.completion_tokens > 1


async def test_completions_streamed_and_not(client: AsyncOpenAI) -> None:
    whole = await client.completions.create(model=MODEL, prompt="The lease is", max_tokens=12, temperature=0)
    stream = await client.completions.create(
        model=MODEL, prompt="The lease is", max_tokens=12, temperature=0, stream=True
    )
    assert "".join([chunk.choices[0].text async for chunk in stream]) == whole.choices[0].text


async def test_logprobs_cover_every_token_once(client: AsyncOpenAI) -> None:
    options = {"model": MODEL, "temperature": 0, "max_tokens": 8, "logprobs": True, "top_logprobs": 2}
    messages = [{"role": "user", "content": FACTS[1].ask[0]}]
    whole = await client.chat.completions.create(messages=messages, **options)
    stream = await client.chat.completions.create(messages=messages, stream=True, **options)
    streamed = [
        entry
        async for chunk in stream
        if chunk.choices and chunk.choices[0].logprobs
        for entry in chunk.choices[0].logprobs.content or []
    ]
    assert whole.choices[0].logprobs is not None
    content = whole.choices[0].logprobs.content or []
    assert [entry.token for entry in streamed] == [entry.token for entry in content]
    assert "".join(entry.token for entry in content) == whole.choices[0].message.content
    assert all(len(entry.top_logprobs) == 2 and entry.top_logprobs[0].token == entry.token for entry in content)


async def test_a_stop_string_across_tokens_ends_the_answer(client: AsyncOpenAI) -> None:
    fact = FACTS[0]
    stop = fact.answer[20:27]
    stream = await client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": fact.ask[0]}], temperature=0, stop=[stop], stream=True
    )
    text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])
    assert text == fact.answer[: fact.answer.index(stop)]


async def test_one_token_is_a_whole_answer(client: AsyncOpenAI, stack: Stack) -> None:
    whole = await client.completions.create(model=MODEL, prompt="The lease is", max_tokens=12, temperature=0)
    one = await client.completions.create(model=MODEL, prompt="The lease is", max_tokens=1, temperature=0)
    assert one.choices[0].finish_reason == "length"
    assert one.usage is not None and one.usage.completion_tokens == 1
    assert one.choices[0].text != "" and whole.choices[0].text.startswith(one.choices[0].text)
    await stack.until_idle()


@pytest.mark.parametrize(
    ("change", "status", "param", "code"),
    [
        ({"model": "gpt-4"}, 404, "model", "model_not_found"),
        ({"n": 1_000}, 400, "n", "integer_above_max_value"),
        ({"temperature": -1}, 400, "temperature", "integer_below_min_value"),
        ({"messages": []}, 400, "messages", "empty_array"),
        ({"messages": [{"role": "user", "content": "lease " * 20_000}]}, 400, "messages", "context_length_exceeded"),
        ({"max_tokens": 1_000_000}, 400, "max_tokens", "context_length_exceeded"),
        ({"max_tokens": 1_000_000, "stream": True}, 400, "max_tokens", "context_length_exceeded"),
        ({"extra_body": {"no_such_thing": 1}}, 400, "no_such_thing", "unknown_parameter"),
    ],
    ids=["model", "n", "temperature", "empty", "too long", "no room", "no room in a stream", "unknown"],
)
async def test_errors_name_the_parameter(
    client: AsyncOpenAI, change: dict[str, object], status: int, param: str, code: str
) -> None:
    with pytest.raises(openai.APIStatusError) as caught:
        await client.chat.completions.create(
            **{"model": MODEL, "messages": [{"role": "user", "content": "hi"}], **change}  # type: ignore[call-overload]
        )
    assert caught.value.status_code == status
    assert (caught.value.param, caught.value.code) == (param, code)


async def test_the_models_are_listed(client: AsyncOpenAI) -> None:
    cards = {model.id: model.model_dump() async for model in client.models.list()}
    assert set(cards) == {MODEL, "tuned", "other"}
    assert (cards[MODEL]["parent"], cards["tuned"]["parent"]) == (None, MODEL)
    assert cards["tuned"]["root"].endswith("/tuned")
