"""How the answers of one model are read: its reasoning and, if the request has tools, its calls."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from baton_serve.workers.parsers.families import (
    ANSWER_BEGINS,
    AUTO,
    MARKS,
    REASONING,
    REASONING_MARKS,
    TOOL_CALLS,
    TOOL_MARKS,
    everything_else,
    family,
)
from baton_serve.workers.parsers.message_parser import MessageParser
from baton_serve.workers.parsers.spaces import load

if TYPE_CHECKING:
    from transformers.utils.chat_parsing.response_templates import ResponseTemplate

#: The parts that a request without tools has not.
_CALLS = frozenset({"name", "arguments", "call", "calls"})
#: What the parts are called in the response templates that come with models.
_OWN_NAMES = {"thinking": "reasoning", "reasoning_content": "reasoning", "tool_calls": "calls"}
#: What reasoning may be called there.
_REASONING_NAMES = frozenset({"reasoning", *(own for own, ours in _OWN_NAMES.items() if ours == "reasoning")})


class MessageFormat:
    """Makes parsers. ``own``: the response template that came with the model's tokenizer, None without one."""

    def __init__(
        self,
        chat_template: str,
        own: dict[str, Any] | None = None,
        tool_call_parser: str = AUTO,
        reasoning_parser: str = AUTO,
    ) -> None:
        self._tools = family(tool_call_parser, chat_template, TOOL_MARKS)
        self._reasoning = family(reasoning_parser, chat_template, REASONING_MARKS)
        self._own = own if tool_call_parser == reasoning_parser == AUTO else None

    @property
    def understands_calls(self) -> bool:
        """Whether calls of tools are found in answers."""
        return self._own is not None or self._tools is not None

    @property
    def understands_reasoning(self) -> bool:
        """Whether reasoning is found in answers, so that the model is one that thinks."""
        if self._own is not None:
            return not self._own["fields"].keys().isdisjoint(_REASONING_NAMES)
        return self._reasoning is not None

    @property
    def names(self) -> list[str | None]:
        """What it is made of. Equal on two workers with the same model that read answers alike."""
        return ["own"] if self._own is not None else [self._tools, self._reasoning]

    def reads_parts(self, *, calls: bool) -> bool:
        """Whether answers are read into parts, with or without the ``calls`` of a request with tools."""
        return (self._with_calls if calls else self._without_calls) is not None

    def has(self, text: str) -> bool:
        """Whether a part of a message may begin or end with ``text``, or with something that has it."""
        template = self._with_calls
        if template is None:
            return False
        patterns = [part for field in template.fields.values() for part in (field.open_re, field.close_re)]
        if any(pattern is not None and re.escape(text) in pattern.pattern for pattern in patterns):
            return True
        return any(text in mark for field in template.fields.values() for mark in field.content_args.get(MARKS, ()))

    def has_begun_in(self, prompt_end: str) -> bool:
        """Whether the answer begins in this part of the prompt, so that what comes before it does not count."""
        template = self._with_calls
        return template is None or template.start_anchor_re.search(prompt_end) is not None

    def parser(self, prompt_end: str, tools: Sequence[dict[str, Any]] | None) -> MessageParser | None:
        """A parser for one answer; None: all of it is content.

        ``prompt_end``: the last part of the prompt's text, with special tokens; it may have begun the answer.
        ``tools``: the request's; None: there are none, or none may be called.
        """
        template = self._without_calls if tools is None else self._with_calls
        if template is None:
            return None
        begins = list(template.start_anchor_re.finditer(prompt_end))
        return MessageParser(template, prompt_end[begins[-1].start() :] if begins else "", tools)

    @cached_property
    def _with_calls(self) -> ResponseTemplate | None:
        return self._template(frozenset())

    @cached_property
    def _without_calls(self) -> ResponseTemplate | None:
        return self._template(_CALLS)

    def _template(self, without: frozenset[str]) -> ResponseTemplate | None:
        if self._own is not None:
            fields = {_OWN_NAMES.get(name, name): part for name, part in self._own["fields"].items()}
            return load({**self._own, "fields": {name: part for name, part in fields.items() if name not in without}})
        calls = TOOL_CALLS[self._tools]["fields"] if self._tools is not None and not without else {}
        thoughts = REASONING[self._reasoning]["fields"] if self._reasoning is not None else {}
        if not calls and not thoughts:
            return None
        parts = {name: part for name, part in calls.items() if name != "reasoning"}
        parts |= {name: part for name, part in thoughts.items() if name not in _CALLS and name not in parts}
        parts.setdefault("content", everything_else())
        return load({"start_anchor_pattern": ANSWER_BEGINS, "fields": parts})
