"""The modules that pyproject.toml has compiled: which of them a run of the tests is over, and what they must not do."""

from __future__ import annotations

import ast
import os
import tomllib
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["baton"]
MODULES: list[str] = SETTINGS["compiled"]
FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef
WAITS = ast.Await | ast.AsyncFor | ast.AsyncWith | ast.Yield | ast.YieldFrom


@cache
def nodes_of(file: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(ast.parse(file.read_text())))


def test_they_are_in_order_and_each_once() -> None:
    assert sorted(set(MODULES)) == MODULES


def test_wheels_are_compiled_with_what_the_tests_are_compiled_with() -> None:
    pinned = (ROOT / "deploy" / "constraints.txt").read_text().splitlines()
    assert set(SETTINGS["compiler"]) <= set(pinned)


@pytest.mark.parametrize("path", MODULES)
def test_it_is_compiled_where_the_run_says_so_and_nowhere_else(path: str) -> None:
    spec = find_spec(path.removesuffix(".py").replace("/", "."))
    assert spec is not None and spec.origin is not None
    assert spec.origin.endswith(tuple(EXTENSION_SUFFIXES)) is (os.environ.get("BATON_COMPILED") == "1")


@pytest.mark.parametrize("path", MODULES)
def test_it_awaits_nothing_while_it_handles_an_exception(path: str) -> None:
    """Compiled, it would leave the exception to whatever runs meanwhile, as the context of its own exceptions."""
    for node in nodes_of(ROOT / path):
        if isinstance(node, ast.Try | ast.TryStar):
            handling = [line for handler in node.handlers for line in handler.body] + node.finalbody
            for inner in (inner for line in handling for inner in ast.walk(line)):
                assert not isinstance(inner, WAITS), inner.lineno
        elif isinstance(node, ast.AsyncWith):  # the exit of these never waits
            assert {ast.unparse(one.context_expr).partition("(")[0] for one in node.items} == {"asyncio.timeout"}


@pytest.mark.parametrize("path", MODULES)
def test_no_exception_loses_its_attributes(path: str) -> None:
    """Compiled, it would have those of its base class, which is not compiled."""
    for node in nodes_of(ROOT / path):
        if isinstance(node, ast.ClassDef) and any(map(_is_exception, node.bases)):
            assert not [line for line in node.body if isinstance(line, ast.Assign | ast.AnnAssign)], node.name


def _is_exception(base: ast.expr) -> bool:
    return ast.unparse(base).endswith(("Exception", "Error"))


@pytest.mark.parametrize("path", MODULES)
def test_no_constant_is_a_tuple_of_floats(path: str) -> None:
    """Compiled, it would seem not to be set."""
    for name, value in _finals(path):
        if isinstance(value, ast.Tuple):
            assert not any(isinstance(one, ast.Constant) and isinstance(one.value, float) for one in value.elts), name


def test_no_test_replaces_a_constant_that_is_compiled_in() -> None:
    constants = {name for path in MODULES for name, _ in _finals(path)}
    for file in (ROOT / "tests").rglob("*.py"):
        if ".setattr(" not in (text := file.read_text()):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".setattr"):
                names = {one.value for one in node.args[:2] if isinstance(one, ast.Constant)}
                assert not {str(name).rpartition(".")[2] for name in names} & constants, (file.name, node.lineno)


def _finals(path: str) -> list[tuple[str, ast.expr]]:
    """The module's constants, and what each of them is."""
    return [
        (ast.unparse(node.target), node.value)
        for node in ast.parse((ROOT / path).read_text()).body
        if isinstance(node, ast.AnnAssign) and node.value and ast.unparse(node.annotation).startswith("Final")
    ]


@pytest.mark.parametrize("path", MODULES)
def test_no_functions_inside_of_a_function_know_each_other(path: str) -> None:
    """Compiled, they would be a cycle with what they were made in, and keep it until the garbage collector comes."""
    for outer in nodes_of(ROOT / path):
        if isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef):
            inner = [node for node in ast.walk(outer) if isinstance(node, FUNCTIONS) and node is not outer]
            names = {node.name for node in inner}
            for node in inner:
                used = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
                own = {one.name for one in ast.walk(node) if isinstance(one, FUNCTIONS) and one is not node}
                assert not used & (names - own), (node.name, node.lineno)


@pytest.mark.parametrize("path", MODULES)
def test_no_data_class_has_a_field_of_a_type_for_typing_alone(path: str) -> None:
    """Compiled, its module needs these types when it is imported, and ends the interpreter if they are not there."""
    tree = ast.parse((ROOT / path).read_text())
    guarded = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    typing_alone = {
        alias.asname or alias.name
        for block in guarded
        for node in ast.walk(block)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    for node in ast.walk(tree):
        made = isinstance(node, ast.ClassDef) and " ".join(map(ast.unparse, (*node.bases, *node.decorator_list)))
        if isinstance(node, ast.ClassDef) and made and ("NamedTuple" in made or "dataclass" in made):
            for field in node.body:
                if isinstance(field, ast.AnnAssign):
                    assert ast.unparse(field.annotation) not in typing_alone, f"{node.name}.{ast.unparse(field.target)}"


def test_no_class_of_another_module_inherits_from_a_compiled_one() -> None:
    """Python cannot make an instance of such a class."""
    compiled = {path.removesuffix(".py").replace("/", ".") for path in MODULES}
    heirs = []
    for package in ("core", "router", "workers", "baton"):
        for file in sorted((ROOT / package).rglob("*.py")):
            if f"baton_serve/{file.relative_to(ROOT).as_posix()}" in MODULES:
                continue
            imported = {
                alias.asname or alias.name
                for node in nodes_of(file)
                if isinstance(node, ast.ImportFrom) and node.module in compiled
                for alias in node.names
            }
            heirs += [
                f"{file.name}: {node.name}"
                for node in nodes_of(file)
                if isinstance(node, ast.ClassDef) and imported & set(map(ast.unparse, node.bases))
            ]
    assert heirs == []
