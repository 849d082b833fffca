"""What the modules of the project import, read from their text.

They are called as the rooms are: ``router.steps`` is imported as ``baton_serve.router.steps``.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

from tests.structure.layers import LAYERS

ROOT = Path(__file__).parents[2]
#: The package that has all of them, by links to the folders at the top.
PACKAGE = "baton_serve"


def sources() -> list[Path]:
    return sorted(path for row in LAYERS[""] for package in row for path in (ROOT / package).rglob("*.py"))


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def imported(path: Path) -> frozenset[str]:
    """Absolute names of modules that a file imports, in functions and for typing as well."""
    found: set[str] = set()
    pending: list[ast.AST] = [ast.parse(path.read_text(), str(path))]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = absolute(path, node)
            found |= {base} | {f"{base}.{alias.name}" for alias in node.names}
        pending.extend(ast.iter_child_nodes(node))
    return frozenset(name.removeprefix(f"{PACKAGE}.") for name in found)


def absolute(path: Path, node: ast.ImportFrom) -> str:
    if node.level == 0:
        return node.module or ""
    package = list(path.relative_to(ROOT).parent.parts)
    base = package[: len(package) - node.level + 1]
    return ".".join([*base, node.module] if node.module else base)
