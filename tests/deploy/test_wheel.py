"""The package as pip gets it: what is in the wheel, and what it asks for."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from email.parser import HeaderParser
from importlib.metadata import packages_distributions
from pathlib import Path

import httpx
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from baton_serve.__main__ import PACKAGE
from baton_serve.baton.processes.vllm.connectors import BATON
from baton_serve.baton.up.preflight import WORKER_PACKAGES
from tests.kits.baton.up_process import RealUpProcess

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PACKAGE_OF_OURS = "baton_serve"
#: The folders of a checkout that are in it by links.
FOLDERS = {"core", "router", "workers", "baton"}
BUILD = "import sys, setuptools.build_meta as build; build.build_wheel(sys.argv[1])"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zipfile.ZipFile]:
    """Built from a copy: setuptools leaves things behind."""
    source, target = tmp_path_factory.mktemp("source") / "baton", tmp_path_factory.mktemp("wheel")
    shutil.copytree(ROOT, source, symlinks=True, ignore=lambda folder, names: set(names) - _kept(Path(folder), names))
    command = [sys.executable, "-c", BUILD, str(target)]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (path,) = target.iterdir()
    assert path.name == f"baton_serve-{PROJECT['version']}-py3-none-any.whl"
    with zipfile.ZipFile(path) as archive:
        yield archive


def _kept(folder: Path, names: list[str]) -> set[str]:
    if folder == ROOT:
        others = {"tests", "bench", "deploy", "pyproject.toml", "setup.py", "README.md", "LICENSE"}
        return set(names) & {PACKAGE_OF_OURS, *FOLDERS, *others}
    return {name for name in names if name != "__pycache__"}


def files(archive: zipfile.ZipFile) -> set[str]:
    return {name for name in archive.namelist() if not name.partition("/")[0].endswith(".dist-info")}


EXTRAS = {name: [Requirement(item) for item in items] for name, items in PROJECT["optional-dependencies"].items()}
#: What asks for another extra of ours.
OWN = PROJECT["name"]


def test_everything_of_our_packages_is_in_it_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    ours = {
        f"{PACKAGE_OF_OURS}/{path.relative_to(ROOT)}"
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and not {"__pycache__", "torture", "training"} & {*path.parts} and path.suffix != ".md"
    }
    ours |= {f"{PACKAGE_OF_OURS}/{path.name}" for path in (ROOT / PACKAGE_OF_OURS).glob("*.py")}
    assert files(wheel) == ours


@pytest.mark.parametrize(
    "file",
    [
        "baton/demo/model/model.safetensors",
        "core/leases/in_redis/lua/grant.lua",
        "router/dashboard/page/dashboard.html",
    ],
)
def test_it_has_more_than_code(wheel: zipfile.ZipFile, file: str) -> None:
    assert wheel.read(f"{PACKAGE_OF_OURS}/{file}") == (ROOT / file).read_bytes()


def test_its_package_is_called_as_nobody_elses(wheel: zipfile.ZipFile) -> None:
    """Of all that is installed here; and it has only one."""
    assert {name.partition("/")[0] for name in files(wheel)} == {PACKAGE_OF_OURS}
    assert set(packages_distributions()[PACKAGE_OF_OURS]) == {PROJECT["name"]}


@pytest.fixture(scope="module")
def installed(wheel: zipfile.ZipFile, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What pip does with it, in a folder of its own."""
    folder = tmp_path_factory.mktemp("site-packages")
    wheel.extractall(folder)
    return folder


@pytest.fixture
def beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory: somebody's project, whose folders are called as ours are."""
    for name in (*FOLDERS, "leases"):
        (tmp_path / "project" / name).mkdir(parents=True)
        (tmp_path / "project" / name / "__init__.py").write_text(f"raise SystemExit('this {name} is not ours')\n")
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path


def run(installed: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A Python that has the wheel."""
    environ = {**os.environ, "PYTHONPATH": str(installed)}
    return subprocess.run([sys.executable, *arguments], env=environ, capture_output=True, text=True, check=False)


def test_the_connector_is_found_beside_folders_that_are_called_as_ours(installed: Path, beside: Path) -> None:
    """As vLLM looks for it, with the current directory first; and something that it imports, which needs no vLLM."""
    code = "import baton_serve.workers.vllm.handshakes; from importlib.util import find_spec; "
    code += f"print(find_spec({BATON.module!r}).origin)"
    done = run(installed, "-c", code)
    assert (done.stderr, done.stdout.strip()) == ("", f"{installed / BATON.module.replace('.', '/')}.py")


def test_an_installed_baton_has_no_command_that_kills_its_parts(installed: Path, beside: Path) -> None:
    for command, status in (("serve", 2), ("torture", 2), ("requests", 0)):
        done = run(installed, "-m", "baton_serve", command, "--help")
        assert (done.returncode, "No such command" in done.stderr) == (status, status == 2)


@pytest.mark.slow
def test_baton_up_serves_beside_folders_that_are_called_as_ours(installed: Path, beside: Path) -> None:
    with RealUpProcess(beside, "--port", "0", "--threads-per-worker", "1", PYTHONPATH=str(installed)) as up:
        url = re.findall(r"http://127\.0\.0\.1:\d+/v1", up.until_ready())[0]
        models = httpx.get(f"{url}/models").json()
        assert [one["id"] for one in models["data"]] == ["baton-demo"]


def test_it_has_the_command_and_the_extras(wheel: zipfile.ZipFile) -> None:
    info = f"baton_serve-{PROJECT['version']}.dist-info"
    assert "baton = baton_serve.__main__:main" in wheel.read(f"{info}/entry_points.txt").decode()
    metadata = HeaderParser().parsestr(wheel.read(f"{info}/METADATA").decode())
    assert set(EXTRAS) == set(metadata.get_all("Provides-Extra") or [])
    assert metadata["Requires-Python"] == ">=3.11"


def test_what_workers_need_is_what_the_extra_brings() -> None:
    extra = [item.name for item in EXTRAS["worker"]]
    assert sorted(extra) == sorted([OWN, *WORKER_PACKAGES])


@pytest.mark.parametrize("extra", ["worker", "vllm"])
def test_workers_and_routers_of_vllm_servers_have_the_command_line(extra: str) -> None:
    assert [item.extras for item in EXTRAS[extra] if item.name == OWN] == [{"router"}]


def test_without_the_router_the_command_says_what_is_missing() -> None:
    hide = f"import sys; sys.modules[{PACKAGE!r}] = None; import baton_serve.__main__ as m; m.main()"
    done = subprocess.run([sys.executable, "-c", hide], cwd=ROOT, capture_output=True, text=True, check=False)
    assert "pip install 'baton-serve[router]'" in done.stderr


def test_every_dependency_has_a_range_and_a_pin_in_it() -> None:
    lines = (ROOT / "deploy" / "constraints.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    pins = {canonicalize_name(name): pin for name, pin in pins.items()}
    everything = [*map(Requirement, PROJECT["dependencies"]), *(item for items in EXTRAS.values() for item in items)]
    for requirement in everything:
        if requirement.name != OWN:
            assert sorted(specifier.operator for specifier in requirement.specifier) == ["<", ">="], requirement
            assert requirement.specifier.contains(pins[canonicalize_name(requirement.name)]), requirement


def test_the_makefile_and_the_images_install_the_torch_that_is_pinned() -> None:
    (pin,) = re.findall(r"^torch==(\S+)$", (ROOT / "deploy" / "constraints.txt").read_text(), re.MULTILINE)
    for name in ("Makefile", "Dockerfile"):
        found = re.findall(r"torch==(\d[\d.]*)", (ROOT / name).read_text())
        assert found and set(found) == {pin}, name
