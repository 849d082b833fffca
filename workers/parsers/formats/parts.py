"""Parts that several families write alike."""

from __future__ import annotations

from typing import Any

#: Where an answer begins, in the chat templates of all families here: a template may write the first words of the
#: answer itself, such as ``<think>``.
ANSWER_BEGINS = "|".join(
    (
        r"<\|im_start\|>assistant\n",
        r"<\|start_header_id\|>assistant<\|end_header_id\|>\n\n",
        r"\[/INST\]",
        r"<｜Assistant｜>",
        r"<\|start\|>assistant",
        r"<\|assistant\|>",
    )
)
#: Spaces belong to the text.
_AS_IT_IS = {"strip": False}

Part = dict[str, Any]


def template(**parts: Part) -> dict[str, Any]:
    """A response template of these parts."""
    return {"start_anchor_pattern": ANSWER_BEGINS, "fields": parts}


def everything_else() -> Part:
    """The part that no other part takes."""
    return {"content": "text", "content_args": _AS_IT_IS, "repeats": True, "join": ""}


def text(begin: str, end: str) -> Part:
    """A text between two patterns."""
    return {
        "open_pattern": begin,
        "close_pattern": end,
        "content": "text",
        "content_args": _AS_IT_IS,
        "repeats": True,
        "join": "",
    }


def many_texts(begin: str, end: str) -> Part:
    """Like ``text``; there may be several, which are not one."""
    return {"open_pattern": begin, "close_pattern": end, "content": "text", "content_args": _AS_IT_IS, "repeats": True}


def nothing(what: str) -> Part:
    """Marks that are no text. Optional marks must not be part of a longer pattern: how far that one reaches would
    depend on the pieces in which the text comes.
    """
    return {"open_pattern": what, "close_pattern": r"(?=.)", "content": "text", "repeats": True}


def thought() -> Part:
    """Reasoning in the words of DeepSeek and Qwen, with the newlines around it."""
    return text(r"<think>\n?", r"\n?</think>\s*")
