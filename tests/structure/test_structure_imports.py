"""Imports run one way, and heavy libraries stay in leaf modules."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

#: Package to the packages it may import.
MAY_IMPORT: dict[str, set[str]] = {
    "protocol": set(),
    "net": {"protocol"},
    "leases": set(),
    "demo": set(),
    "registry": {"protocol"},
    "router": {"protocol", "net", "leases", "registry"},
    "workers": {"protocol", "net", "leases", "registry"},
    "baton": {"protocol", "net", "leases", "registry", "router", "workers", "demo"},
}
HEAVY = {"torch", "transformers", "tokenizers", "safetensors", "nixl", "nixl_cu12", "nixl_cu13"}
#: Where heavy libraries may be imported, as prefixes of paths. The demo is trained with them, not served.
HEAVY_ALLOWED = (
    "workers/rank/",
    "workers/server/tokenizer.py",
    "workers/transfer/nixl_port.py",
    "demo/",
)
#: What must start without a heavy library.
LIGHT_STARTS = [
    "import baton.cli; baton.cli.main(['--help'])",
    "import baton.cli; baton.cli.main(['up', '--help'])",
    "import baton.cli; baton.cli.main(['worker', '--help'])",
    "import baton.main",
    "import router.app",
    "import router.main",
    "import workers.engine.api",
    "import workers.settings",
    "import demo",
]
#: ``baton --help`` must be quick, so it does without these as well.
FRAMEWORKS = {"fastapi", "uvicorn", "starlette", "aiohttp", "httpx", "redis", "rich", "pydantic", "yaml", "numpy"}


def sources() -> list[Path]:
    return sorted(path for package in MAY_IMPORT for path in (ROOT / package).rglob("*.py"))


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(path: Path, at_import_time: bool = False) -> set[str]:
    """Absolute names of modules that a file imports; ``at_import_time`` leaves out typing and function bodies."""
    found: set[str] = set()
    pending: list[ast.AST] = [ast.parse(path.read_text(), str(path))]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = absolute(path, node)
            found |= {base} | {f"{base}.{alias.name}" for alias in node.names}
        if at_import_time and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if at_import_time and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            pending.extend(node.orelse)
            continue
        pending.extend(ast.iter_child_nodes(node))
    return found


def absolute(path: Path, node: ast.ImportFrom) -> str:
    if node.level == 0:
        return node.module or ""
    package = list(path.relative_to(ROOT).parent.parts)
    base = package[: len(package) - node.level + 1]
    return ".".join([*base, node.module] if node.module else base)


def test_packages_import_downwards_only() -> None:
    wrong = []
    for path in sources():
        package = path.relative_to(ROOT).parts[0]
        targets = {name.partition(".")[0] for name in imported(path)} & set(MAY_IMPORT)
        wrong += [f"{path.relative_to(ROOT)} imports {name}" for name in targets - MAY_IMPORT[package] - {package}]
    assert wrong == []


def test_every_package_of_ours_is_in_the_table() -> None:
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert packages - set(MAY_IMPORT) <= {"bench"}


def test_no_module_imports_itself_in_a_circle() -> None:
    names = {module_name(path): path for path in sources()}
    graph = {
        name: {target for target in imported(path, at_import_time=True) if target in names and target != name}
        for name, path in names.items()
    }
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, " -> ".join([*trail[trail.index(name) :], name])
        if name not in done:
            for target in sorted(graph[name]):
                if not name.startswith(f"{target}."):  # every module imports its own package; that is no choice
                    visit(target, (*trail, name))
            done.add(name)

    for name in sorted(graph):
        visit(name, ())


def test_heavy_libraries_are_imported_in_leaves_only() -> None:
    wrong = []
    for path in sources():
        place = path.relative_to(ROOT).as_posix()
        heavy = {name.partition(".")[0] for name in imported(path)} & HEAVY
        if heavy and not place.startswith(HEAVY_ALLOWED):
            wrong.append(f"{place} imports {', '.join(sorted(heavy))}")
    assert wrong == []


@pytest.mark.parametrize("statement", LIGHT_STARTS)
def test_starts_without_heavy_libraries(statement: str) -> None:
    assert loaded_after(statement) & HEAVY == set()


def test_a_workers_main_process_starts_without_torch() -> None:
    assert "torch" not in loaded_after("import workers.main")


def test_help_starts_without_frameworks() -> None:
    assert loaded_after(LIGHT_STARTS[0]) & FRAMEWORKS == set()


def loaded_after(statement: str) -> set[str]:
    """Top-level packages that a fresh interpreter has loaded after a statement."""
    program = f"{statement}\nimport sys; print('LOADED', *sorted({{name.partition('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.rpartition("LOADED")[2].split())
