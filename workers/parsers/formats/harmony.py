"""gpt-oss: an answer is a sequence of messages, each with a channel: ``analysis``, ``commentary`` or ``final``.

A message of ``commentary`` with a recipient is a call. What lies between messages is no text.
"""

from __future__ import annotations

from workers.parsers.formats.parts import many_texts, template, text

_BEGIN = r"(?:<\|start\|>assistant)?"
_KIND = r"(?:\s*<\|constrain\|>\w+)?"

HARMONY = template(
    reasoning=text(rf"{_BEGIN}<\|channel\|>analysis{_KIND}<\|message\|>", r"<\|end\|>"),
    content=text(rf"{_BEGIN}<\|channel\|>(?:final|commentary){_KIND}<\|message\|>", r"<\|end\|>|<\|return\|>"),
    name=many_texts(
        rf"{_BEGIN}(?:<\|channel\|>(?:commentary|analysis)\s+to=functions\.|\s+to=functions\.)",
        r"(?=[\s<])(?:\s*<\|channel\|>(?:commentary|analysis))?\s*(?:json|(?:<\|constrain\|>)?\w+)?\s*<\|message\|>",
    ),
    arguments=many_texts(r"(?<=to=functions\.[^{]*<\|message\|>)", r"<\|call\|>"),
)
