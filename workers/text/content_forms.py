"""In which form a chat template wants the content of messages: as a text, or as a list of parts with texts.

A template that goes through the parts of a content finds none in a text, and leaves out what was said. So which form it
wants is seen by using it: whatever its loops and macros look like, a word that is said must be in the prompt.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

#: What a template raises besides its own errors if it meets values that its author has not thought of: a template is a
#: program, and its variables are the client's.
MISTAKES = (ValueError, TypeError, ArithmeticError, LookupError, AttributeError, RecursionError)

#: A word that no template has, and that none changes by cutting spaces or tags.
_WORD = "zqxjv"
_CALL = {"id": "call00001", "type": "function", "function": {"name": "f", "arguments": {}}}
_CALLING = {"role": "assistant", "content": "", "tool_calls": [_CALL]}
#: The roles other than the user's, each with what comes before and after its message in a conversation that is usual.
_AMONG_OTHERS: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]]]] = {
    "system": ([], [{"role": "user", "content": "u"}]),
    "assistant": ([{"role": "user", "content": "u"}], [{"role": "user", "content": "v"}]),
    "tool": ([{"role": "user", "content": "u"}, _CALLING], []),
}


@dataclass(frozen=True)
class ContentForms:
    """The roles whose messages have their content as parts; and whether what a user says is in the prompt at all."""

    as_parts: frozenset[str]
    shows_users: bool

    def of(self, conversation: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The conversation, each message with its content in its role's form."""
        return [
            {**message, "content": _parts(message["content"])}
            if _known(message["role"]) in self.as_parts
            else {**message, "content": _text(message["content"])}
            for message in conversation
        ]


def forms_of(render: Callable[[list[dict[str, Any]]], str]) -> ContentForms:
    """The forms that a template wants. ``render`` applies it to a conversation."""
    as_text = _shows(render, "user", frozenset())
    wants_parts = not as_text and bool(_shows(render, "user", frozenset({"user"})))
    parts = frozenset({"user"} if wants_parts else ())
    # A role that the template leaves out or refuses in both forms has the user's.
    others = [
        role
        for role in _AMONG_OTHERS
        if not _shows(render, role, parts) and (wants_parts or _shows(render, role, parts | {role}))
    ]
    return ContentForms(parts.union(others), shows_users=as_text is not False or wants_parts)


def _shows(render: Callable[[list[dict[str, Any]]], str], role: str, as_parts: frozenset[str]) -> bool | None:
    """Whether what is said in this role is in the prompt; None: the template refuses the conversation."""
    from jinja2 import TemplateError

    before, after = _AMONG_OTHERS.get(role, ([], []))
    about = {"tool_call_id": _CALL["id"], "name": "f"} if role == "tool" else {}
    conversation = [*before, {"role": role, "content": _WORD, **about}, *after]
    try:
        return _WORD in render(ContentForms(as_parts, shows_users=True).of(conversation))
    except (TemplateError, *MISTAKES):
        return None


def _known(role: str) -> str:
    return "system" if role == "developer" else role


def _text(content: str | list[dict[str, str]]) -> str:
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def _parts(content: str | list[dict[str, str]]) -> list[dict[str, str]]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content
