"""Requests whose answers must have a form: what ranks keep for them, and for how long."""

from __future__ import annotations

import asyncio
import tracemalloc
from typing import Any

import pytest

from baton_serve.core.protocol.openai.structured import MAX_FORM_BYTES, MAX_RULE_MARKS, Form
from baton_serve.workers.engine.api import GrammarFailedError
from baton_serve.workers.grammar.rank_grammars import HeldGrammar
from tests.kits.worker.front import chat, completion, front

BY_REGEX = {"structured_outputs": {"regex": "a+"}}


class CountedGrammars:
    """Holds any form, and knows how many are held."""

    def __init__(self) -> None:
        self.forms: list[Form] = []
        self.clients: list[str] = []
        self.num_held = 0

    async def hold(self, form: Form, client: str) -> HeldGrammar:
        self.forms.append(form)
        self.clients.append(client)
        self.num_held += 1
        return HeldGrammar("its grammar", self._release)

    def _release(self) -> None:
        self.num_held -= 1


def tools(number: int, num_properties: int, about: str = "") -> list[dict[str, Any]]:
    properties = {f"property_{each}": {"type": "string", "description": about} for each in range(num_properties)}
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return [{"type": "function", "function": {"name": f"f{each}", "parameters": schema}} for each in range(number)]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_grammar_is_held_until_its_request_has_ended(stream: bool) -> None:
    grammars = CountedGrammars()
    async with front(hold_grammar=grammars.hold) as worker:
        worker.engine.gate = asyncio.Semaphore(0)
        task = asyncio.create_task(worker.http.post("/v1/completions", json=completion(stream=stream, **BY_REGEX)))
        await worker.engine.until_running()
        assert grammars.num_held == 1
        assert worker.engine.requests[0].grammar == "its grammar"
        worker.engine.gate = None
        for request_id in list(worker.engine.running):
            worker.engine.abort(request_id)
        await task
    assert grammars.num_held == 0


@pytest.mark.parametrize(("sent", "client"), [("0123456789abcdef", "0123456789abcdef"), ("a" * 4000, ""), (None, "")])
async def test_the_client_that_the_router_names(sent: str | None, client: str) -> None:
    grammars = CountedGrammars()
    headers = {} if sent is None else {"x-baton-client": sent}
    async with front(hold_grammar=grammars.hold) as worker:
        await worker.http.post("/v1/completions", json=completion(**BY_REGEX), headers=headers)
    assert grammars.clients == [client]


async def test_a_refused_request_holds_nothing() -> None:
    grammars = CountedGrammars()
    async with front(hold_grammar=grammars.hold) as worker:
        answer = await worker.http.post("/v1/completions", json=completion(max_tokens=10**6, **BY_REGEX))
        assert answer.status_code == 400
        assert len(grammars.forms) == 1 and grammars.num_held == 0
        worker.engine.draining = True
        assert (await worker.http.post("/v1/completions", json=completion(**BY_REGEX))).status_code == 503
    assert grammars.num_held == 0


async def test_a_grammar_that_fails_while_it_is_followed() -> None:
    grammars = CountedGrammars()
    async with front(hold_grammar=grammars.hold) as worker:
        worker.engine.error = GrammarFailedError("Too many items (limit 50000; try avoiding)\n<non-verbose/>")
        answer = await worker.http.post("/v1/completions", json=completion(**BY_REGEX))
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == ("grammar_failed", "structured_outputs.regex")
    assert "too large or too complex" in error["message"] and "\n" not in error["message"]
    assert grammars.num_held == 0


async def test_tools_are_bounded_by_their_bytes_and_not_by_their_colons() -> None:
    grammars = CountedGrammars()
    async with front(hold_grammar=grammars.hold) as worker:
        body = chat(tools=tools(8, 60), tool_choice="required")
        assert (await worker.http.post("/v1/chat/completions", json=body)).status_code == 200
        assert grammars.forms[0].text.count(":") > MAX_RULE_MARKS
        body = chat(tools=tools(2, 10, "x" * (MAX_FORM_BYTES // 20)), tool_choice="required")
        answer = await worker.http.post("/v1/chat/completions", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tools")


async def test_schemas_of_tools_are_put_into_the_librarys_words() -> None:
    grammars = CountedGrammars()
    schema = {"type": "object", "propertyNames": {"type": "string"}, "properties": {"a": {"format": "password"}}}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    async with front(hold_grammar=grammars.hold) as worker:
        await worker.http.post("/v1/chat/completions", json=chat(tools=[tool], tool_choice="required"))
    assert '"a":{}' in grammars.forms[0].text and "propertyNames" not in grammars.forms[0].text


async def test_no_pattern_of_a_client_is_searched_for_on_the_event_loop() -> None:
    """Python's ``re`` would not end for this one in a lifetime."""
    grammars = CountedGrammars()
    schema = {"propertyNames": {"pattern": "^(a+)+$"}, "properties": {"a" * 40 + "!": {}}}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    async with front(hold_grammar=grammars.hold) as worker:
        await worker.http.post("/v1/chat/completions", json=chat(tools=[tool], tool_choice="required"))
    assert '"patternProperties":{"^(a+)+$":{}}' in grammars.forms[0].text


async def test_schemas_of_tools_are_bounded_before_they_are_rewritten() -> None:
    """A short reference may become a long list of names."""
    reference = {"propertyNames": {"$ref": "#/$defs/Names"}}
    schema = {"$defs": {"Names": {"enum": [str(number) for number in range(1000)]}}, "anyOf": [reference] * 5_000}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    async with front(hold_grammar=CountedGrammars().hold) as worker:
        tracemalloc.start()
        try:
            answer = await worker.http.post("/v1/chat/completions", json=chat(tools=[tool], tool_choice="required"))
            assert tracemalloc.get_traced_memory()[1] < 50 << 20
        finally:
            tracemalloc.stop()
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tools")


@pytest.mark.parametrize("num_tools", [1, 8])
async def test_schemas_of_tools_do_not_multiply_while_they_are_rewritten(num_tools: int) -> None:
    """What values may be is written once for each name: 30 names in four levels are a kilobyte, and were 55 MB."""
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(4 if num_tools == 1 else 2):
        names = {"enum": [str(number) for number in range(30)]}
        schema = {"type": "object", "propertyNames": names, "additionalProperties": schema}
    tools = [{"type": "function", "function": {"name": f"f{each}", "parameters": schema}} for each in range(num_tools)]
    grammars = CountedGrammars()
    async with front(hold_grammar=grammars.hold) as worker:
        tracemalloc.start()
        try:
            answer = await worker.http.post("/v1/chat/completions", json=chat(tools=tools, tool_choice="required"))
            assert tracemalloc.get_traced_memory()[1] < 4 << 20
        finally:
            tracemalloc.stop()
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tools")
    assert "'propertyNames'" in answer.json()["error"]["message"] and not grammars.forms


@pytest.mark.parametrize("depth", [150, 380])
async def test_schemas_of_tools_that_are_nested_too_deeply(depth: int) -> None:
    schema: dict[str, Any] = {"type": "object"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    async with front(hold_grammar=CountedGrammars().hold) as worker:
        answer = await worker.http.post("/v1/chat/completions", json=chat(tools=[tool], tool_choice="required"))
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tools")
