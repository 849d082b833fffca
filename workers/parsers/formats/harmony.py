"""gpt-oss: an answer is a sequence of messages, each with a channel: ``analysis``, ``commentary`` or ``final``.

A message of ``commentary`` with a recipient is a call. What lies between messages is no text.
"""

from __future__ import annotations

from baton_serve.workers.parsers.formats.parts import call, template, text

_BEGIN = r"(?:<\|start\|>assistant)?"
#: Such as ``json``.
_WORD = r"\w{1,32}"
_KIND = rf"(?:\s*<\|constrain\|>{_WORD})?"

HARMONY = template(
    reasoning=text(rf"{_BEGIN}<\|channel\|>analysis{_KIND}<\|message\|>", r"<\|end\|>"),
    content=text(rf"{_BEGIN}<\|channel\|>(?:final|commentary){_KIND}<\|message\|>", r"<\|end\|>|<\|return\|>"),
    call=call(rf"{_BEGIN}(?:<\|channel\|>(?:commentary|analysis)\s+to=functions\.|\s+to=functions\.)", r"<\|call\|>"),
)
