"""What pyproject.toml has compiled, and that a run of the tests is over what it says."""

from __future__ import annotations

import ast
import os
import tomllib
from pathlib import Path

import pytest

from tests.kits.compiled import is_compiled

ROOT = Path(__file__).parents[2]
MODULES: list[str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["baton"]["compiled"]


def test_they_are_in_order_and_each_once() -> None:
    assert sorted(set(MODULES)) == MODULES


@pytest.mark.parametrize("path", MODULES)
def test_it_is_compiled_where_the_run_says_so_and_nowhere_else(path: str) -> None:
    module = path.removesuffix(".py").replace("/", ".")
    assert is_compiled(module) is (os.environ.get("BATON_COMPILED") == "1")


@pytest.mark.parametrize("path", MODULES)
def test_it_awaits_nothing_while_it_handles_an_exception(path: str) -> None:
    """Compiled, it would leave the exception to whatever runs meanwhile, as the context of its own exceptions."""
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        if isinstance(node, ast.Try):
            handling = [line for handler in node.handlers for line in handler.body] + node.finalbody
            for inner in (inner for line in handling for inner in ast.walk(line)):
                assert not isinstance(inner, ast.Await | ast.AsyncFor | ast.AsyncWith | ast.Yield), inner.lineno
        elif isinstance(node, ast.AsyncWith):
            assert {ast.unparse(one.context_expr).partition("(")[0] for one in node.items} == {"asyncio.timeout"}
