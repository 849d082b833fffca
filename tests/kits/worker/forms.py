"""Forms that harm who compiles them, each a client's of some bytes."""

from __future__ import annotations

from baton_serve.core.protocol.openai.structured import Kind

#: They take minutes and gigabytes to compile; the last one some seconds and one gigabyte.
DEADLY: list[tuple[Kind, str]] = [
    ("json_schema", '{"allOf":[{"type":"integer","multipleOf":9973},{"type":"integer","multipleOf":9967}]}'),
    ("grammar", 'start: %json {"type":"integer","multipleOf":99999989}'),
    ("grammar", "start: T\nT: " + " & ".join(f"/(.*a.{{{number}}}.*)/" for number in range(50))),
    ("regex", "a?" * 20_000),
]
#: They compile, and fail at their first mask.
ENDLESS: list[tuple[Kind, str]] = [
    ("grammar", "start: start"),
    ("grammar", "root ::= root"),
    ("json_schema", '{"$ref":"#"}'),
]
