"""What users of OpenAI's Responses and of Anthropic's Messages see, with those clients themselves."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import openai
import pytest
import pytest_asyncio
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI
from pydantic import BaseModel

from baton_serve.baton.demo.training.questions import QUESTIONS
from tests.kits.strict_types import count_of, message_events, message_of, response_events, response_of
from tests.kits.whole.stack import MODEL, Stack

FACT = next(fact for fact in QUESTIONS if fact.id == "hand_off")
ASK = FACT.ask[0]
PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"leg": {"type": "integer", "minimum": 1, "maximum": 99}, "hand": {"enum": ["left", "right"]}},
    "required": ["leg", "hand"],
    "additionalProperties": False,
}
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
#: Anthropic's newest models have no temperature, and so its client knows none.
GREEDY = {"temperature": 0}


class Pass(BaseModel):
    """A form for an answer."""

    leg: int
    is_last: bool


@pytest_asyncio.fixture(loop_scope="package")
async def claude(stack: Stack) -> AsyncIterator[AsyncAnthropic]:
    async with AsyncAnthropic(base_url=stack.router.url, api_key="none", max_retries=0, timeout=60) as running:
        yield running


async def ask(stack: Stack, path: str, **body: Any) -> str:
    return (await stack.post(path, **body)).text


# --- OpenAI's client


async def test_a_response_and_a_conversation_that_goes_on(client: AsyncOpenAI) -> None:
    first = await client.responses.create(model=MODEL, input=ASK, temperature=0)
    assert (first.output_text, first.status) == (FACT.answer, "completed")
    assert first.usage is not None and first.usage.total_tokens == first.usage.input_tokens + first.usage.output_tokens
    chat = await client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": ASK}], temperature=0)
    assert chat.usage is not None and chat.usage.completion_tokens == first.usage.output_tokens
    items: list[Any] = [{"role": "user", "content": ASK}, *first.output, {"role": "user", "content": ASK}]
    second = await client.responses.create(model=MODEL, input=items, instructions="Be brief.", temperature=0)
    assert second.output_text and second.usage is not None
    assert second.usage.input_tokens > first.usage.total_tokens


async def test_a_streamed_response_is_the_same(client: AsyncOpenAI) -> None:
    async with client.responses.stream(model=MODEL, input=ASK, temperature=0) as stream:
        events = [event async for event in stream]
        final = await stream.get_final_response()
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == FACT.answer
    assert final.output_text == FACT.answer
    whole = await client.responses.create(model=MODEL, input=ASK, temperature=0)
    assert final.usage is not None and whole.usage is not None
    assert (final.usage.input_tokens, final.usage.output_tokens) == (
        whole.usage.input_tokens,
        whole.usage.output_tokens,
    )


async def test_a_response_is_parsed(client: AsyncOpenAI) -> None:
    parsed = await client.responses.parse(
        model=MODEL, input=ASK, text_format=Pass, temperature=1, max_output_tokens=300
    )
    assert isinstance(parsed.output_parsed, Pass)
    async with client.responses.stream(
        model=MODEL, input=ASK, text_format=Pass, temperature=1, max_output_tokens=300
    ) as stream:
        final = await stream.get_final_response()
    assert isinstance(final.output_parsed, Pass)


async def test_a_call_and_what_came_of_it(client: AsyncOpenAI) -> None:
    tool: Any = {"type": "function", "name": "pass_on", "parameters": PARAMETERS, "strict": True}
    asked: dict[str, Any] = {"model": MODEL, "tools": [tool], "temperature": 1, "max_output_tokens": 200}
    answer = await client.responses.create(
        input=ASK, tool_choice={"type": "function", "name": "pass_on"}, extra_body={"seed": 3}, **asked
    )
    (call,) = answer.output
    assert call.type == "function_call" and set(json.loads(call.arguments)) == {"leg", "hand"}
    async with client.responses.stream(
        input=ASK, tool_choice={"type": "function", "name": "pass_on"}, extra_body={"seed": 3}, **asked
    ) as stream:
        (streamed,) = (await stream.get_final_response()).output
    assert streamed.type == "function_call" and streamed.arguments == call.arguments
    items: list[Any] = [
        {"role": "user", "content": ASK},
        call,
        {"type": "function_call_output", "call_id": call.call_id, "output": "passed"},
    ]
    answer = await client.responses.create(input=items, tool_choice="none", **asked)
    assert answer.output_text


@pytest.mark.parametrize(
    ("change", "status", "param"),
    [
        ({"model": "gpt-4"}, 404, "model"),
        ({"previous_response_id": "resp_1"}, 400, "previous_response_id"),
        ({"tools": [{"type": "file_search", "vector_store_ids": ["v"]}]}, 400, "tools[0]"),
        ({"max_output_tokens": 1_000_000}, 400, "max_output_tokens"),
        ({"input": "lease " * 20_000}, 400, "input"),
        (
            {"text": {"format": {"type": "json_schema", "name": "s", "schema": {"uniqueItems": True}}}},
            400,
            "text.format",
        ),
    ],
)
async def test_errors_name_the_parameter_of_a_response(
    client: AsyncOpenAI, change: dict[str, Any], status: int, param: str
) -> None:
    with pytest.raises(openai.APIStatusError) as caught:
        await client.responses.create(**{"model": MODEL, "input": "hi", **change})
    assert (caught.value.status_code, caught.value.param) == (status, param)
    assert "'messages'" not in caught.value.message and "response_format" not in caught.value.message


async def test_responses_are_not_kept(client: AsyncOpenAI) -> None:
    for call in (client.responses.retrieve, client.responses.delete, client.responses.cancel):
        with pytest.raises(openai.NotFoundError, match="not kept"):
            await call("resp_1")


# --- Anthropic's client


def said(message: Any) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


async def test_a_message_and_a_conversation_that_goes_on(claude: AsyncAnthropic) -> None:
    asked: dict[str, Any] = {"model": MODEL, "max_tokens": 200, "extra_body": GREEDY}
    messages: list[Any] = [{"role": "user", "content": ASK}]
    first = await claude.messages.create(messages=messages, **asked)
    assert (said(first), first.stop_reason) == (FACT.answer, "end_turn")
    assert first._request_id is not None and first.id == f"msg_{first._request_id}"
    messages += [{"role": "assistant", "content": first.content}, {"role": "user", "content": ASK}]
    second = await claude.messages.create(messages=messages, system="Be brief.", **asked)
    assert said(second)
    count = await claude.messages.count_tokens(model=MODEL, messages=messages, system="Be brief.")
    usage = second.usage
    assert count.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)


async def test_a_streamed_message_is_the_same(claude: AsyncAnthropic) -> None:
    async with claude.messages.stream(
        model=MODEL, max_tokens=200, messages=[{"role": "user", "content": ASK}], extra_body=GREEDY
    ) as stream:
        text = "".join([piece async for piece in stream.text_stream])
        final = await stream.get_final_message()
    assert text == said(final) == FACT.answer
    assert (final.stop_reason, final.usage.output_tokens > 5) == ("end_turn", True)


async def test_an_answer_goes_on_where_the_client_has_begun_it(claude: AsyncAnthropic) -> None:
    begun = FACT.answer[: FACT.answer.index(" ", 20)]
    messages: list[Any] = [{"role": "user", "content": ASK}, {"role": "assistant", "content": begun}]
    answer = await claude.messages.create(model=MODEL, max_tokens=200, messages=messages, extra_body=GREEDY)
    assert begun + said(answer) == FACT.answer


async def test_a_call_of_a_tool_and_its_result(claude: AsyncAnthropic) -> None:
    tool: Any = {"name": "pass_on", "input_schema": PARAMETERS}
    asked: dict[str, Any] = {"model": MODEL, "max_tokens": 200, "tools": [tool]}
    forced: dict[str, Any] = {"tool_choice": {"type": "tool", "name": "pass_on"}, "extra_body": {"seed": 3}}
    messages: list[Any] = [{"role": "user", "content": ASK}]
    answer = await claude.messages.create(messages=messages, **asked, **forced)
    (call,) = answer.content
    assert answer.stop_reason == "tool_use" and call.type == "tool_use" and set(call.input) == {"leg", "hand"}
    async with claude.messages.stream(messages=messages, **asked, **forced) as stream:
        final = await stream.get_final_message()
    (streamed,) = final.content
    assert streamed.type == "tool_use" and (streamed.name, streamed.input) == (call.name, call.input)
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "passed"}
    messages += [{"role": "assistant", "content": answer.content}, {"role": "user", "content": [result]}]
    answer = await claude.messages.create(messages=messages, tool_choice={"type": "none"}, **asked)
    assert said(answer)


async def test_a_stop_sequence_ends_a_message(claude: AsyncAnthropic) -> None:
    stop = FACT.answer[20:27]
    answer = await claude.messages.create(
        model=MODEL,
        max_tokens=200,
        messages=[{"role": "user", "content": ASK}],
        extra_body=GREEDY,
        stop_sequences=[stop, "qzx"],
    )
    assert said(answer) == FACT.answer[: FACT.answer.index(stop)]
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", stop)


@pytest.mark.parametrize(
    ("change", "kind", "named"),
    [
        ({"model": "claude"}, anthropic.NotFoundError, "claude"),
        ({"max_tokens": 1_000_000}, anthropic.BadRequestError, "max_tokens"),
        ({"messages": [{"role": "user", "content": "lease " * 20_000}]}, anthropic.BadRequestError, "messages"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, anthropic.BadRequestError, "tools[0]"),
        ({"extra_body": {"mcp_servers": [{"name": "m"}]}}, anthropic.BadRequestError, "mcp_servers"),
    ],
)
async def test_errors_name_the_parameter_of_a_message(
    claude: AsyncAnthropic, change: dict[str, Any], kind: type[anthropic.APIStatusError], named: str
) -> None:
    body = {"model": MODEL, "max_tokens": 10, "messages": [{"role": "user", "content": "hi"}], **change}
    with pytest.raises(kind) as caught:
        await claude.messages.create(**body)
    assert named in caught.value.message and "'max_completion_tokens'" not in caught.value.message


# --- strictly by the clients' own types


async def test_what_is_sent_is_what_the_clients_types_say(stack: Stack) -> None:
    """Whole and streamed, of P and D, with logprobs, and cut off; an answer of one token is P's alone."""
    logprobs = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    for limit in (1, 12):
        body: dict[str, Any] = {"input": ASK, "max_output_tokens": limit, "temperature": 0, **logprobs}
        whole = response_of(await ask(stack, RESPONSES, **body))
        *_, last = response_events(await ask(stack, RESPONSES, stream=True, **body))
        assert (whole.status, last.type) == ("incomplete", "response.incomplete")
        assert whole.output_text == last.response.output_text == FACT.answer[: len(whole.output_text)]
        for response in (whole, last.response):
            tokens = response.output[0].content[0].logprobs
            assert "".join(token.token for token in tokens) == whole.output_text and len(tokens) == limit
            assert all(len(token.top_logprobs) == 2 for token in tokens)
            assert response.usage.output_tokens == limit
        said = {"messages": [{"role": "user", "content": ASK}], "max_tokens": limit, "temperature": 0}
        message = message_of(await ask(stack, MESSAGES, **said))
        events = message_events(await ask(stack, MESSAGES, stream=True, **said))
        assert message.stop_reason == events[-2].delta.stop_reason == "max_tokens"
        assert message.content[0].text == whole.output_text
        usage = events[-2].usage
        assert events[0].message.usage.input_tokens == usage.input_tokens + usage.cache_read_input_tokens
        assert usage.output_tokens == message.usage.output_tokens == limit
    assert count_of(await ask(stack, f"{MESSAGES}/count_tokens", messages=[{"role": "user", "content": ASK}])) > 3
    await stack.until_idle()
