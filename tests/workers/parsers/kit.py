"""What the tests of parsers share: one message put together from deltas, and texts with which a call begins."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from baton_serve.workers.parsers.message_parser import MessageParser

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {"type": "object", "properties": {"n": {"type": "integer"}, "s": {"type": "string"}}},
        },
    }
    for name in ("get", "put")
]
#: How each family begins a call, up to the end of its name, and how the arguments and the call end.
CALLS = {
    "hermes": ('<tool_call>\n{"name": "get"', ', "arguments": ', "}\n</tool_call>"),
    "qwen3_coder": ("<tool_call>\n<function=get>", "\n", "\n</function>\n</tool_call>"),
    "llama3_json": ('{"name": "get"', ', "parameters": ', "}"),
    "mistral": ("[TOOL_CALLS]get", "[ARGS]", ""),
    "deepseek_v3": ("<｜tool▁call▁begin｜>function<｜tool▁sep｜>get", "\n```json\n", "\n```<｜tool▁call▁end｜>"),
    "deepseek_v31": ("<｜tool▁call▁begin｜>get", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"),
    "openai": (
        "<|start|>assistant<|channel|>commentary to=functions.get",
        " <|constrain|>json<|message|>",
        "<|call|>",
    ),
}
#: How reasoning begins in answers of these families.
THOUGHTS = {"mistral": ("mistral", "[THINK]"), "openai": ("openai_gptoss", "<|channel|>analysis<|message|>")}
THINKS = ("qwen3", "<think>\n")


@dataclass
class Read:
    """A message, put together from deltas."""

    content: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)


def read_by(parser: MessageParser, pieces: Iterable[str]) -> Read:
    """The message that a parser makes of an answer."""
    found = Read()
    for delta in (*map(parser.feed, pieces), parser.finish()):
        found.content += delta.content
        found.reasoning += delta.reasoning
        for call in delta.calls:
            if call.name is not None:
                assert call.index == len(found.calls), "calls come one after another"
                found.calls.append((call.name, ""))
            name, arguments = found.calls[call.index]
            found.calls[call.index] = (name, arguments + call.arguments)
    return found
