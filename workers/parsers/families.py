"""The families of models whose tool calls and reasoning are understood, by the names that vLLM gives to its parsers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from baton_serve.workers.parsers.formats.deepseek import DEEPSEEK_V3, DEEPSEEK_V31
from baton_serve.workers.parsers.formats.harmony import HARMONY
from baton_serve.workers.parsers.formats.hermes import HERMES
from baton_serve.workers.parsers.formats.llama import LLAMA
from baton_serve.workers.parsers.formats.mistral import MISTRAL
from baton_serve.workers.parsers.formats.qwen_coder import QWEN_CODER

if TYPE_CHECKING:
    from collections.abc import Mapping

#: How calls are written, by ``tool_call_parser``.
TOOL_CALLS: Mapping[str, dict[str, Any]] = {
    "hermes": HERMES,
    "qwen3_coder": QWEN_CODER,
    "llama3_json": LLAMA,
    "mistral": MISTRAL,
    "deepseek_v3": DEEPSEEK_V3,
    "deepseek_v31": DEEPSEEK_V31,
    "openai": HARMONY,
}
#: How reasoning is written, by ``reasoning_parser``.
REASONING: Mapping[str, dict[str, Any]] = {
    "deepseek_r1": DEEPSEEK_V3,
    "qwen3": HERMES,
    "mistral": MISTRAL,
    "openai_gptoss": HARMONY,
}
#: What shows in a chat template that a model of the family is meant. The first that is found counts: models of several
#: families have tags of others too.
_TOOL_MARKS = (
    (("<|channel|>",), "openai"),
    (("<function=",), "qwen3_coder"),
    (("<tool_call>",), "hermes"),
    (("[TOOL_CALLS]",), "mistral"),
    (("<｜tool▁call▁begin｜>", "```json"), "deepseek_v3"),
    (("<｜tool▁call▁begin｜>",), "deepseek_v31"),
    (("<|python_tag|>",), "llama3_json"),
    (('"parameters": dictionary of argument name',), "llama3_json"),
)
_REASONING_MARKS = (
    (("<|channel|>",), "openai_gptoss"),
    (("[THINK]",), "mistral"),
    (("<｜Assistant｜>", "</think>"), "deepseek_r1"),
    (("</think>",), "qwen3"),
)
#: A setting's value: go by the model's chat template.
AUTO = "auto"
#: A setting's value: the text is passed on as it is.
NONE = "none"


def tool_family(chosen: str, chat_template: str) -> str | None:
    """The name in ``TOOL_CALLS``. ``chosen``: a name, ``auto`` or ``none``. None: calls are not understood."""
    return _family(chosen, chat_template, _TOOL_MARKS)


def reasoning_family(chosen: str, chat_template: str) -> str | None:
    """The same for ``REASONING``."""
    return _family(chosen, chat_template, _REASONING_MARKS)


def _family(chosen: str, chat_template: str, marks: tuple[tuple[tuple[str, ...], str], ...]) -> str | None:
    if chosen == NONE:
        return None
    if chosen != AUTO:
        return chosen
    return next((name for some, name in marks if all(mark in chat_template for mark in some)), None)
