"""The grammar of forced calls: arguments are an object whatever a tool's schema leaves open."""

from __future__ import annotations

from typing import Any

import pytest

from baton_serve.workers.parsers.forced_calls import grammar_of_calls


@pytest.mark.parametrize("parameters", [None, {}, {"properties": {"a": {}}}, {"type": "object"}])
def test_arguments_are_an_object(parameters: Any) -> None:
    function = {"name": "get"} if parameters is None else {"name": "get", "parameters": parameters}
    (line,) = [
        line
        for line in grammar_of_calls([{"type": "function", "function": function}], one=True).splitlines()
        if line.startswith("arguments_0")
    ]
    assert '"type":"object"' in line
