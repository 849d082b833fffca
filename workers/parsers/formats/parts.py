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

#: Most characters of a function's name that are looked at, which is twice what a client may give one. A name that does
#: not end would be searched for its end with every token.
NAME = 128
#: Where a part says which marks it has besides those in its patterns. The library does not look at it.
MARKS = "marks"

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


def call(begin: str, end: str, marks: tuple[str, ...] = ()) -> Part:
    """A call in one part: its name up to what no name has, and its arguments from the first brace on.

    It is one because the library's parser, looking for a part that begins behind another one, holds back text that only
    ends like that one. ``marks``: special tokens between the two, which say nothing that is needed.
    """
    part = many_texts(begin, end)
    return {**part, "content_args": {**_AS_IT_IS, MARKS: marks}}


def json_calls(begin: str, end: str) -> Part:
    """A call that is a JSON object, or several in a list. Their text is read when all of it has come."""
    return {"open_pattern": begin, "close_pattern": end, "content": "text", "repeats": True}
