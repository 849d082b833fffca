"""Whoever starts a process says its environment: by default it would be that of the parent, secrets included."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
STARTS = {"Popen", "call", "check_call", "check_output", "create_subprocess_exec", "create_subprocess_shell"}


def test_no_process_inherits_by_default() -> None:
    found = {}
    for package in ("baton", "core", "router", "workers"):
        for path in (ROOT / package).rglob("*.py"):
            for call in _starts(ast.parse(path.read_text())):
                found[f"{path.relative_to(ROOT)}:{call.lineno}"] = "env" in {each.arg for each in call.keywords}
    assert len(found) >= 6
    assert [where for where, has_environment in found.items() if not has_environment] == []


def _starts(tree: ast.Module) -> list[ast.Call]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _is_start(node.func)]


def _is_start(function: ast.expr) -> bool:
    *_, module, name = ["", *ast.unparse(function).split(".")]
    return (module in {"asyncio", "subprocess"} and name in STARTS) or (module, name) == ("subprocess", "run")
