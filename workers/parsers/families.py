"""How families of models write reasoning and tool calls: response templates of ``transformers``, under the names that
vLLM gives to its parsers.

A template says where each part of a message begins and ends. These have the parts ``content``, ``reasoning``, ``name``
and ``arguments`` (a call whose arguments are JSON, passed on as they come) or both in one, ``call``, and ``calls``
(calls that have to be read to their end first). Where a part begins and ends is all of the library's: see
``transformers``' documentation of response parsing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    return {"start_anchor_pattern": ANSWER_BEGINS, "fields": parts}


def everything_else() -> Part:
    """The part that no other part takes."""
    return {"content": "text", "content_args": _AS_IT_IS, "repeats": True, "join": ""}


def many_texts(begin: str, end: str) -> Part:
    """Texts between two patterns."""
    return {"open_pattern": begin, "close_pattern": end, "content": "text", "content_args": _AS_IT_IS, "repeats": True}


def text(begin: str, end: str) -> Part:
    """Like ``many_texts``; several are one."""
    return {**many_texts(begin, end), "join": ""}


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


# Hermes, Qwen 2.5 and Qwen 3: a JSON object with ``name`` and ``arguments`` between tags.
_HERMES_NAME = r'<tool_call>\s*\{\s*"name"\s*:\s*"'

HERMES = template(
    content=everything_else(),
    reasoning=thought(),
    name=many_texts(rf"\s*{_HERMES_NAME}", '"'),
    arguments=many_texts(rf'(?<={_HERMES_NAME}[^"]*")\s*,\s*"arguments"\s*:\s*', r"\s*\}\s*</tool_call>\s*"),
)

#: Qwen 3 Coder: tags for the function and for each parameter, whose type only the tool's schema knows.
QWEN_CODER = template(
    content=everything_else(),
    reasoning=thought(),
    calls={
        "open_pattern": rf"\s*<tool_call>\s*<function=(?P<name>[^>\s]{{1,{NAME}}})>\s*",
        "close_pattern": r"\s*</function>\s*</tool_call>\s*",
        "content": "xml-inline",
        # A value ends before the next parameter at the latest: otherwise each of many that do not end would be searched
        # for its end as far as the text goes.
        "content_args": {
            "tag_pattern": rf"<parameter=(?P<key>[^>\s]{{1,{NAME}}})>\n?"
            r"(?P<value>(?:(?!<parameter=).)*?)\n?</parameter>"
        },
        "transform": {"function": {"name": "{name}", "arguments": "{content}"}},
        "repeats": True,
    },
)

#: Llama 3: the whole answer is a JSON object with ``name`` and ``parameters``, or several, with semicolons between.
LLAMA = template(
    content=everything_else(),
    # Only at the beginning of an answer, or behind a call: JSON in the middle of a text is text.
    calls=json_calls(
        r"(?:\A\s*(?:<\|python_tag\|>)?|(?<=\})\s*;)\s*"
        r'(?=\{\s*(?:"type"\s*:\s*"function"\s*,\s*)?"name"\s*:\s*"'
        rf'[^"]{{0,{NAME}}}"\s*,\s*"(?:parameters|arguments)"\s*:)',
        r"(?<=\})(?=\s*;\s*\{)",
    ),
)

#: Mistral: a control token, and then the name and the arguments of a call; in older models a list of JSON objects.
MISTRAL = template(
    content=everything_else(),
    reasoning=text(r"\[THINK\]", r"\[/THINK\]\s*"),
    call=call(r"\s*\[TOOL_CALLS\]\s*(?=[^\[\s])", r"\s*(?=\[TOOL_CALLS\])", marks=("[CALL_ID]", "[ARGS]")),
    calls=json_calls(r"\s*\[TOOL_CALLS\]\s*(?=\[)", r"\s*(?=\[TOOL_CALLS\])"),
)

# DeepSeek V3 and R1, which write ``function`` and a fenced block around the arguments, and V3.1, which does not.
_CALL = r"\s*<｜tool▁call▁begin｜>"
_END = r"\s*<｜tool▁call▁end｜>\s*"
_FRAME = nothing(r"\s*(?:<｜tool▁calls▁begin｜>|<｜tool▁calls▁end｜>)\s*")
_SEPARATOR = "<｜tool▁sep｜>"

DEEPSEEK_V3 = template(
    content=everything_else(),
    reasoning=thought(),
    frame=_FRAME,
    call=call(rf"{_CALL}function{_SEPARATOR}", rf"\n?```{_END}"),
)

DEEPSEEK_V31 = template(
    content=everything_else(),
    reasoning=thought(),
    frame=_FRAME,
    call=call(_CALL, _END, marks=(_SEPARATOR,)),
)

# gpt-oss: an answer is a sequence of messages, each with a channel: ``analysis``, ``commentary`` or ``final``.
# A message of ``commentary`` with a recipient is a call. What lies between messages is no text.
_BEGIN = r"(?:<\|start\|>assistant)?"
#: Such as ``json``.
_WORD = r"\w{1,32}"
_KIND = rf"(?:\s*<\|constrain\|>{_WORD})?"

HARMONY = template(
    reasoning=text(rf"{_BEGIN}<\|channel\|>analysis{_KIND}<\|message\|>", r"<\|end\|>"),
    content=text(rf"{_BEGIN}<\|channel\|>(?:final|commentary){_KIND}<\|message\|>", r"<\|end\|>|<\|return\|>"),
    call=call(rf"{_BEGIN}(?:<\|channel\|>(?:commentary|analysis)\s+to=functions\.|\s+to=functions\.)", r"<\|call\|>"),
)

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
TOOL_MARKS = (
    (("<|channel|>",), "openai"),
    (("<function=",), "qwen3_coder"),
    (("<tool_call>",), "hermes"),
    (("[TOOL_CALLS]",), "mistral"),
    (("<｜tool▁call▁begin｜>", "```json"), "deepseek_v3"),
    (("<｜tool▁call▁begin｜>",), "deepseek_v31"),
    (("<|python_tag|>",), "llama3_json"),
    (('"parameters": dictionary of argument name',), "llama3_json"),
)
REASONING_MARKS = (
    (("<|channel|>",), "openai_gptoss"),
    (("[THINK]",), "mistral"),
    (("<｜Assistant｜>", "</think>"), "deepseek_r1"),
    (("</think>",), "qwen3"),
)
#: A setting's value: go by the model's chat template.
AUTO = "auto"
#: A setting's value: the text is passed on as it is.
NONE = "none"


def family(chosen: str, chat_template: str, marks: Sequence[tuple[tuple[str, ...], str]]) -> str | None:
    """The name of a family. ``chosen``: a name, ``auto`` or ``none``. None: its calls, or its reasoning, are not
    understood.
    """
    if chosen == NONE:
        return None
    if chosen != AUTO:
        return chosen
    return next((name for some, name in marks if all(mark in chat_template for mark in some)), None)
