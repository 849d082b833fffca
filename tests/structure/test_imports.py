"""Imports run one way, and heavy libraries stay in leaf modules."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.structure.imports import ROOT, imported, module_name, sources
from tests.structure.layers import LAYERS, picture

HEAVY = {"torch", "transformers", "tokenizers", "safetensors", "nixl", "nixl_cu12", "nixl_cu13", "zmq", "vllm"}
#: Where heavy libraries may be imported, as prefixes of paths. The demo is trained with them, not served.
HEAVY_ALLOWED = (
    "workers/parsers/forced_calls.py",
    "workers/parsers/message_format.py",
    "workers/parsers/message_parser.py",
    "workers/parsers/spaces.py",
    "workers/rank/",
    "workers/text/model_files.py",
    "workers/text/tokenizer.py",
    "workers/transfer/nixl/nixl_agent.py",
    "workers/vllm/block_layout.py",
    "workers/vllm/connector.py",
    "workers/vllm/in_redis.py",
    "workers/vllm/messages.py",
    "workers/vllm/presence.py",
    "workers/vllm/scheduler.py",
    "workers/vllm/side_channel.py",
    "workers/vllm/stats.py",
    "workers/vllm/worker.py",
    "router/vllm/leases/agent/nixl_port.py",
    "baton/demo/",
)
#: What must start without a heavy library.
LIGHT_STARTS = [
    "import baton_serve.baton.cli; baton_serve.baton.cli.main(['--help'])",
    "import baton_serve.baton.cli; baton_serve.baton.cli.main(['up', '--help'])",
    "import baton_serve.baton.cli; baton_serve.baton.cli.main(['worker', '--help'])",
    "import baton_serve.baton.up.up",
    "import baton_serve.router.apps.public",
    "import baton_serve.router.main",
    "import baton_serve.workers.engine.api",
    "import baton_serve.workers.settings",
    "import baton_serve.baton.demo",
]
#: ``baton --help`` must be quick, so it does without these as well.
FRAMEWORKS = {"fastapi", "uvicorn", "starlette", "aiohttp", "httpx", "redis", "rich", "pydantic", "yaml", "numpy"}


#: What shows requests to people and programs is given facts, and never the record of a request.
OBSERVERS = (
    "router/admin",
    "router/dashboard",
    "router/telemetry/metrics",
    "router/telemetry/tracing",
    "router/steps/end_log.py",
)
#: The modules of ``router.request`` that say something about requests and hold none.
SHOWN = ("router.request.ended", "router.request.facts", "router.request.states", "router.request.view")


def row_of(package: str, room: str) -> int:
    """Counted from the top; raises LookupError for a room that is not declared."""
    for number, row in enumerate(LAYERS[package]):
        if room in row:
            return number
    raise LookupError(f"{package}/{room} is in no row of {package}")


def shared_package(one: str, other: str) -> tuple[str, str, str] | None:
    """The innermost package with rows that has both, and the room of each; None if they are in the same room."""
    mine, theirs = one.split("."), other.split(".")
    depth = 0
    while depth < min(len(mine), len(theirs)) and mine[depth] == theirs[depth]:
        depth += 1
    package = ".".join(mine[:depth])
    if package not in LAYERS or depth >= min(len(mine), len(theirs)):
        return None
    return package, mine[depth], theirs[depth]


def test_imports_go_downwards_only() -> None:
    names = {module_name(path): path for path in sources()}
    wrong = []
    for name, path in names.items():
        for target in imported(path) & set(names):
            shared = shared_package(name, target)
            if shared is not None and row_of(shared[0], shared[1]) >= row_of(shared[0], shared[2]):
                wrong.append(f"{name} imports {target}")
    assert sorted(wrong) == []


@pytest.mark.parametrize("package", LAYERS)
def test_every_room_is_in_one_row(package: str) -> None:
    declared = [room for row in LAYERS[package] for room in row]
    folder = ROOT / package.replace(".", "/")
    packages = {path.parent.name for path in folder.glob("*/__init__.py") if not path.parent.is_symlink()}
    modules = {path.stem for path in folder.glob("*.py")} - {"__init__"} if package else set()
    assert sorted(declared) == sorted((packages | modules) - {"bench", "tests"})


def test_the_docs_show_the_rows() -> None:
    assert picture() in (ROOT / "docs" / "structure.md").read_text()


def graph_of(paths: list[Path]) -> dict[str, set[str]]:
    """Which of these modules each of them imports, for typing as well."""
    names = {module_name(path): path for path in paths}
    return {
        name: {target for target in imported(path) if target in names and target != name}
        for name, path in names.items()
    }


def check_circles(graph: dict[str, set[str]]) -> None:
    """Raises AssertionError with the first circle that is found."""
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


def test_no_module_knows_itself_in_a_circle() -> None:
    """What only typing needs counts as well."""
    check_circles(graph_of(sources()))


def test_no_benchmark_knows_itself_in_a_circle() -> None:
    check_circles(graph_of(sorted((ROOT / "bench").rglob("*.py"))))


@pytest.mark.parametrize("program", ["engine", "load"])
def test_no_c_file_of_the_benchmarks_knows_itself_in_a_circle(program: str) -> None:
    """A source and its header are one: a file may use what its own header declares."""
    graph: dict[str, set[str]] = {}
    for path in sorted((ROOT / "bench" / "router" / "native" / program).glob("*.[ch]")):
        includes = set(re.findall(r'^#include "(\w+)\.h"', path.read_text(), re.MULTILINE))
        graph[path.stem] = graph.get(path.stem, set()) | includes - {path.stem}
    assert len(graph) > 4
    check_circles(graph)


def test_heavy_libraries_are_imported_in_leaves_only() -> None:
    wrong = []
    for path in sources():
        place = path.relative_to(ROOT).as_posix()
        heavy = {name.partition(".")[0] for name in imported(path)} & HEAVY
        if heavy and not place.startswith(HEAVY_ALLOWED):
            wrong.append(f"{place} imports {', '.join(sorted(heavy))}")
    assert wrong == []


def test_the_product_does_without_what_only_development_needs() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    product = (item for name in ("router", "worker", "connector", "otel") for item in extras[name])
    installed = {package_of(item) for item in [*project["dependencies"], *product]}
    for_development = {package_of(item) for item in extras["dev"]} - installed
    found = {name.partition(".")[0] for path in sources() for name in imported(path)}
    assert "aiohttp" in for_development
    assert found & for_development == set()


def package_of(requirement: str) -> str:
    """The package that a requirement brings, where it is imported under the name by which it is installed."""
    return Requirement(requirement).name.replace("-", "_")


@pytest.mark.parametrize("statement", LIGHT_STARTS)
def test_starts_without_heavy_libraries(statement: str) -> None:
    assert loaded_after(statement) & HEAVY == set()


def test_a_workers_main_process_starts_without_torch() -> None:
    assert "torch" not in loaded_after("import baton_serve.workers.main")


def test_help_starts_without_frameworks() -> None:
    assert loaded_after(LIGHT_STARTS[0]) & FRAMEWORKS == set()


def loaded_after(statement: str) -> set[str]:
    """Top-level packages that a fresh interpreter has loaded after a statement."""
    program = f"{statement}\nimport sys; print('LOADED', *sorted({{name.partition('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.rpartition("LOADED")[2].split())


def test_the_tests_of_a_room_are_where_the_room_is() -> None:
    """Every folder of tests/core, tests/router, tests/workers and tests/baton is called as a room of ours is."""
    tests = ROOT / "tests"
    folders = [path.parent for row in LAYERS[""] for package in row for path in (tests / package).rglob("__init__.py")]
    assert len(folders) > 30
    assert [folder for folder in folders if not (ROOT / folder.relative_to(tests) / "__init__.py").is_file()] == []


def test_what_tests_share_is_a_kit() -> None:
    """A file with tests is imported by no other: what two of them need is in tests/kits."""
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for name in imported(path)
        if re.fullmatch(r"tests\.([a-z_0-9]+\.)*test_\w+", name)
    ]
    assert wrong == []


@pytest.mark.parametrize("observer", OBSERVERS)
def test_observers_do_not_know_the_record_of_a_request(observer: str) -> None:
    path = ROOT / observer
    of_requests = {
        name
        for source in ([path] if path.is_file() else sorted(path.rglob("*.py")))
        for name in imported(source)
        if name.startswith("router.request.")
    }
    assert of_requests, "it shows no request at all"
    assert {name for name in of_requests if not name.startswith(SHOWN)} == set()
