"""DeepSeek V3 and R1, which write ``function`` and a fenced block around the arguments, and V3.1, which does not."""

from __future__ import annotations

from baton_serve.workers.parsers.formats.parts import call, everything_else, nothing, template, thought

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
