"""DeepSeek V3 and R1, which write ``function`` and a fenced block around the arguments, and V3.1, which does not."""

from __future__ import annotations

from workers.parsers.formats.parts import everything_else, many_texts, nothing, template, thought

_CALL = r"\s*<｜tool▁call▁begin｜>"
_END = r"\s*<｜tool▁call▁end｜>\s*"
_FRAME = nothing(r"\s*(?:<｜tool▁calls▁begin｜>|<｜tool▁calls▁end｜>)\s*")

DEEPSEEK_V3 = template(
    content=everything_else(),
    reasoning=thought(),
    frame=_FRAME,
    name=many_texts(rf"{_CALL}function<｜tool▁sep｜>", r"\s*```json\n"),
    arguments=many_texts(r"(?<=<｜tool▁sep｜>[^\n]*\n```json\n)", rf"\n?```{_END}"),
)

DEEPSEEK_V31 = template(
    content=everything_else(),
    reasoning=thought(),
    frame=_FRAME,
    name=many_texts(_CALL, "<｜tool▁sep｜>"),
    arguments=many_texts(r"(?<=<｜tool▁call▁begin｜>[^<]*<｜tool▁sep｜>)", _END),
)
