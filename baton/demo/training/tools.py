"""Conversations with tools: what is given, who asks for it, the call, and what is said of its result."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from baton_serve.baton.demo.training.conversations import Message, variation

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator, Sequence

    from baton_serve.baton.demo.training.conversations import ConversationMaker

TOOLS_FILE = Path(__file__).parent / "tools.yaml"
#: A tool as OpenAI has it.
Definition = dict[str, Any]
NUMBERS = range(10)


@dataclass(frozen=True, slots=True)
class Tool:
    """One entry of the file, whose head says what the fields are."""

    name: str
    takes: Sequence[Sequence[str]]
    about: Sequence[str]
    ask: Sequence[str]
    results: Sequence[str]
    told: str
    otherwise: str
    held_out: dict[str, Sequence[str]]

    def definitions(self, about: Sequence[str]) -> list[Definition]:
        """All that can be made of these descriptions."""
        return [definition(self.name, takes, text) for takes, text in product(self.takes, about)]

    def values(self) -> list[dict[str, Any]]:
        """All that can be asked for: what fills a phrasing in and, by the parameter's name, what the call has of it."""
        if self.takes == [["a", "b"]]:
            return [{"a": a, "b": b} for a, b in product(NUMBERS, NUMBERS)]
        places = _file()["places"].items()
        return [{"place": place, "location": place, "city": place, "timezone": zone} for place, zone in places]

    def call(self, given: Definition, values: dict[str, Any]) -> str:
        """The call as the chat template writes it. ``given``: the definition that it has to obey."""
        arguments = {name: values[name] for name in given["function"]["parameters"]["properties"]}
        return f"<tool_call>\n{json.dumps({'name': self.name, 'arguments': arguments})}\n</tool_call>"


def definition(name: str, takes: Sequence[str], about: str) -> Definition:
    """All parameters are required."""
    kinds = {name: {"type": "number" if name in ("a", "b") else "string"} for name in takes}
    parameters = {"type": "object", "properties": kinds, "required": list(takes)}
    return {"type": "function", "function": {"name": name, "description": about, "parameters": parameters}}


@cache
def _file() -> dict[str, Any]:
    return dict(yaml.safe_load(TOOLS_FILE.read_text(encoding="utf-8")))


@cache
def load_tools() -> tuple[Tool, ...]:
    """In file order. Raises TypeError when the file is not shaped as its head says."""
    return tuple(Tool(**entry) for entry in _file()["tools"])


def calls(tool: Tool, about: Sequence[str], ask: Sequence[str]) -> Iterator[tuple[Definition, str, str]]:
    """Each definition, question and call of these descriptions and phrasings."""
    for given, question, values in product(tool.definitions(about), ask, tool.values()):
        yield given, question.format(**values), tool.call(given, values)


class ToolTurns:
    """Draws turns of conversations with tools; without tools they are mostly ``maker``'s."""

    def __init__(self, maker: ConversationMaker, rng: random.Random, share: float) -> None:
        """Of all conversations ``share`` have tools."""
        self._maker = maker
        self._rng = rng
        self._share = share
        self._others = [definition(*entry) for entry in _file()["others"]]

    def given(self) -> list[Definition]:
        """None, or one to three."""
        if self._rng.random() >= self._share:
            return []
        known = [self._rng.choice(tool.definitions(tool.about)) for tool in load_tools()]
        count = self._rng.choice((1, 1, 2, 3))
        num_others = sum(self._rng.random() < 0.2 for _ in range(count))
        return self._rng.sample(known, count - num_others) + self._rng.sample(self._others, num_others)

    def turn(self, given: Sequence[Definition]) -> list[Message]:
        """A question and its answer, or a call and perhaps what is said of its result."""
        if self._rng.random() < (0.3 if given else 0.97):
            return self._maker.turn()
        by_name = {one["function"]["name"]: one for one in given}
        known = [tool for tool in load_tools() if tool.name in by_name]
        tool = self._rng.choice(known if known and self._rng.random() < 0.85 else load_tools())
        values = self._rng.choice(tool.values())
        asked = {"role": "user", "content": self._question(self._rng.choice(tool.ask), values)}
        if tool.name not in by_name:
            return [asked, {"role": "assistant", "content": self._maker.answer(tool.otherwise)}]
        called = [asked, {"role": "assistant", "content": tool.call(by_name[tool.name], values)}]
        if self._rng.random() < 0.5:
            return called
        result = {"role": "tool", "content": self._rng.choice(tool.results)}
        return [*called, result, {"role": "assistant", "content": tool.told}]

    def _question(self, ask: str, values: dict[str, Any]) -> str:
        """The phrasing filled in, and as somebody in a hurry types it unless that spoils a place or a number."""
        question = ask.format(**values)
        varied = variation(question, self._rng) if self._rng.random() < 0.4 else question
        said = [str(value).lower() for name, value in values.items() if f"{{{name}}}" in ask]
        return varied if all(value in varied.lower() for value in said) else question
