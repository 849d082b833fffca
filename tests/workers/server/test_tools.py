"""Calls of tools and reasoning in answers: whole, streamed, split between P and D, and continued elsewhere."""

from __future__ import annotations

from typing import Any

import pytest

from baton_serve.workers.parsers.message_format import MessageFormat
from tests.kits.worker.front import EOS, chat, front, text_of, tokens_of
from tests.kits.worker.streams import REQUEST_ID, Answer, ask, go_on_by_hand_off, go_on_plain, parts

PATH = "/v1/chat/completions"
SAID = (
    "<think>the runner</think>On.\n"
    '<tool_call>{"name":"get","arguments":{"a":"the \u20ac"}}</tool_call>'
    '<tool_call>{"name":"put","arguments":{}}</tool_call>'
)
ARGUMENTS = [("get", '{"a":"the \u20ac"}'), ("put", "{}")]
SCRIPT = [*tokens_of(SAID), EOS]
FORMAT = MessageFormat("", None, "hermes", "qwen3")
#: Tokens up to the middle of the mark that ends the first call.
SCRIPT_TO_MARK = len(tokens_of(SAID.partition("</tool_call>")[0] + "</tool"))
TOOLS = [{"type": "function", "function": {"name": name}} for name in ("get", "put")]
BODY = chat(seed=1, tools=TOOLS, max_tokens=len(SCRIPT))


def called(answer: Answer) -> list[tuple[str, str]]:
    return [(name, arguments) for _, name, arguments in answer.calls]


async def test_a_whole_answer() -> None:
    async with front(SCRIPT, message_format=FORMAT) as worker:
        response = await worker.http.post(PATH, json=BODY, headers={"x-request-id": REQUEST_ID})
        streamed = Answer().see(*await ask(worker, PATH, BODY))
        prompt = text_of(worker.engine.requests[0].prompt_token_ids)
    assert prompt == "[get] is a tool\n[put] is a tool\n[user] hello\n"
    (choice,) = response.json()["choices"]
    message = choice["message"]
    assert choice["finish_reason"] == "tool_calls"
    assert (message["content"], message["reasoning_content"], message["reasoning"]) == ("On.", *["the runner"] * 2)
    assert [(c["type"], c["function"]["name"], c["function"]["arguments"]) for c in message["tool_calls"]] == [
        ("function", name, arguments) for name, arguments in ARGUMENTS
    ]
    assert [call["id"] for call in message["tool_calls"]] == [call[0] for call in streamed.calls]
    assert len({call[0] for call in streamed.calls}) == 2


async def test_a_stream() -> None:
    async with front(SCRIPT, message_format=FORMAT) as worker:
        events = await ask(worker, PATH, BODY)
    answer = Answer().see(*events)
    assert (answer.text, answer.reasoning) == ("On.", "the runner")
    assert called(answer) == ARGUMENTS
    assert answer.finish_reason == "tool_calls"
    deltas = [event.chunk["choices"][0]["delta"] for event in events if event.chunk["choices"]]
    in_arguments = [delta for delta in deltas if delta.get("tool_calls") and "id" not in delta["tool_calls"][0]]
    assert len(in_arguments) > 3, "arguments come as they are made"


@pytest.mark.parametrize("go_on", [go_on_plain, go_on_by_hand_off])
async def test_an_answer_that_goes_on_elsewhere(go_on: Any) -> None:
    async with front(SCRIPT, message_format=FORMAT) as worker:
        whole = Answer().see(*(events := await ask(worker, PATH, BODY)))
        for had in parts(events):
            answer = await go_on(worker, PATH, BODY, had)
            assert (answer.text, answer.reasoning, answer.calls) == (whole.text, whole.reasoning, whole.calls)
            assert answer.finish_reason == "tool_calls"


async def test_p_and_d() -> None:
    async with front(SCRIPT, message_format=FORMAT) as worker:
        first = await ask(worker, PATH, BODY, do_remote_decode=True)
        answer = Answer().see_whole(first).see(*await ask(worker, PATH, BODY, **first["kv_transfer_params"]))
        whole = await worker.http.post(PATH, json={**BODY, "kv_transfer_params": first["kv_transfer_params"]})
    assert (answer.text, answer.reasoning, called(answer)) == ("On.", "the runner", ARGUMENTS)
    message = whole.json()["choices"][0]["message"]
    assert (message["content"], message["reasoning_content"], message["reasoning"]) == ("On.", *["the runner"] * 2)
    assert len(message["tool_calls"]) == 2


async def test_what_p_shows_of_its_token() -> None:
    """A thought's first token is part of the thought, as the prompt has begun it."""
    async with front([*tokens_of("hm</think>yes"), EOS], message_format=FORMAT) as worker:
        body = chat("<|im_start|>assistant\n<think>", max_tokens=50, seed=1)
        first = await ask(worker, PATH, body, do_remote_decode=True)
        answer = Answer().see_whole(first).see(*await ask(worker, PATH, body, **first["kv_transfer_params"]))
    assert first["choices"][0]["message"]["reasoning_content"] == "h"
    assert (answer.reasoning, answer.text) == ("hm", "yes")


@pytest.mark.parametrize(
    ("more", "calls", "content"),
    [
        ({"parallel_tool_calls": False}, ARGUMENTS[:1], "On."),
        ({"tool_choice": "none"}, [], SAID.partition("</think>")[2]),
        ({"stop": '"put'}, ARGUMENTS[:1], "On."),
    ],
)
async def test_fewer_calls(more: dict[str, Any], calls: list[tuple[str, str]], content: str) -> None:
    async with front(SCRIPT, message_format=FORMAT) as worker:
        answer = Answer().see(*await ask(worker, PATH, {**BODY, **more}))
    assert called(answer) == calls
    assert answer.text.startswith(content)
    assert answer.finish_reason == ("tool_calls" if calls else "stop")


async def test_an_answer_that_is_cut_off_has_no_calls_as_its_reason() -> None:
    async with front(SCRIPT, message_format=FORMAT) as worker:
        answer = Answer().see(*await ask(worker, PATH, {**BODY, "max_tokens": len(SCRIPT) - 20}))
    assert answer.calls and answer.finish_reason == "length"


@pytest.mark.parametrize(
    ("more", "calls", "reason"),
    [
        ({"stop": "e \u20ac"}, [("get", '{"a":"th')], "stop"),
        ({"stop_token_ids": tokens_of("\u20ac")[:1]}, [("get", '{"a":"the ')], "stop"),
        ({"stop": "</tool_call>"}, ARGUMENTS[:1], "tool_calls"),
        ({"stop": ',"arguments":{}', "parallel_tool_calls": False}, ARGUMENTS[:1], "tool_calls"),
        ({"stop": "{}"}, [*ARGUMENTS[:1], ("put", "")], "stop"),
        ({"max_tokens": SCRIPT_TO_MARK}, ARGUMENTS[:1], "length"),
    ],
)
async def test_an_answer_that_ends_in_a_call(more: dict[str, Any], calls: list[tuple[str, str]], reason: str) -> None:
    """It has ended because of its calls only if the last one is whole."""
    async with front(SCRIPT, message_format=FORMAT) as worker:
        answer = Answer().see(*await ask(worker, PATH, {**BODY, **more}))
        response = await worker.http.post(PATH, json={**BODY, **more})
    (choice,) = response.json()["choices"]
    functions = [call["function"] for call in choice["message"]["tool_calls"]]
    assert [(function["name"], function["arguments"]) for function in functions] == called(answer) == calls
    assert choice["finish_reason"] == answer.finish_reason == reason


@pytest.mark.parametrize("long", ["hm", "and so on " * 9])
async def test_a_thought_that_goes_on_in_a_continued_message(long: str) -> None:
    """However long the client has made it."""
    said = {"role": "assistant", "content": f"<|im_start|>assistant\n<think>{long}\n"}
    async with front([*tokens_of("\nyes</think>Yes"), EOS], message_format=FORMAT) as worker:
        messages = [{"role": "user", "content": "hi"}, said]
        body = {**chat(max_tokens=20, seed=1), "messages": messages}
        body |= {"continue_final_message": True, "add_generation_prompt": False}
        answer = Answer().see(*await ask(worker, PATH, body))
    assert (answer.reasoning.strip(), answer.text) == ("yes", "Yes")


#: Tokens up to the last one with reasoning: the mark that begins it, and it.
NUM_REASONING = len(tokens_of("<think>the runner"))


async def test_tokens_of_reasoning_are_counted_alike_everywhere() -> None:
    """In a stream, in a whole answer, by P and D, and by one that goes on where another has broken off."""

    def counted(usage: Any) -> tuple[int, int]:
        return usage["completion_tokens_details"]["reasoning_tokens"], usage["completion_tokens"]

    async with front(SCRIPT, message_format=FORMAT) as worker:
        events = await ask(worker, PATH, BODY)
        streamed = Answer().see(*events)
        whole = (await worker.http.post(PATH, json=BODY)).json()
        assert counted(streamed.usage) == counted(whole["usage"]) == (NUM_REASONING, len(SCRIPT))
        first = await ask(worker, PATH, BODY, do_remote_decode=True)
        assert counted(first["usage"])[0] in (0, 1)
        params = first["kv_transfer_params"]
        assert counted(Answer().see(*await ask(worker, PATH, BODY, **params)).usage)[0] == NUM_REASONING
        rest = await worker.http.post(PATH, json={**BODY, "kv_transfer_params": params})
        assert counted(rest.json()["usage"])[0] == NUM_REASONING
        for had in parts(events):
            for go_on in (go_on_plain, go_on_by_hand_off):
                assert counted((await go_on(worker, PATH, BODY, had)).usage)[0] == NUM_REASONING


async def test_a_model_that_does_not_think_has_no_count() -> None:
    async with front(SCRIPT) as worker:
        whole = (await worker.http.post(PATH, json=chat(max_tokens=5))).json()
    assert "completion_tokens_details" not in whole["usage"]


async def test_logprobs_are_of_all_tokens() -> None:
    async with front(SCRIPT, message_format=FORMAT) as worker:
        answer = Answer().see(*await ask(worker, PATH, {**BODY, "logprobs": True}))
    assert len(answer.logprobs) == len(SCRIPT) - 1


async def test_a_model_whose_calls_are_not_understood() -> None:
    async with front(SCRIPT) as worker:
        response = await worker.http.post(PATH, json=BODY)
        text = await worker.http.post(PATH, json={**BODY, "tool_choice": "none"})
    assert response.status_code == 400 and response.json()["error"]["param"] == "tools"
    assert "tool_call_parser" in response.json()["error"]["message"]
    assert text.json()["choices"][0]["message"]["content"] == SAID


async def test_tools_are_tokenized_with_a_chat() -> None:
    async with front(message_format=FORMAT) as worker:
        response = await worker.http.post("/tokenize", json={"messages": chat()["messages"], "tools": TOOLS})
    assert text_of(response.json()["tokens"]) == "[get] is a tool\n[put] is a tool\n[user] hello\n"
