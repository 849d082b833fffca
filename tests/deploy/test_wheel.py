"""The package as pip gets it: what is in the wheel, and what it asks for."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
import zipfile
from email.parser import HeaderParser
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from packaging.requirements import Requirement

from baton.__main__ import PACKAGE
from baton.up.preflight import WORKER_PACKAGES

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PACKAGES = {"core", "router", "workers", "baton"}
BUILD = "import sys, setuptools.build_meta as build; build.build_wheel(sys.argv[1])"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zipfile.ZipFile]:
    """Built from a copy: setuptools leaves things behind."""
    source, target = tmp_path_factory.mktemp("source") / "baton", tmp_path_factory.mktemp("wheel")
    shutil.copytree(ROOT, source, ignore=lambda folder, names: set(names) - _kept(Path(folder), names))
    command = [sys.executable, "-c", BUILD, str(target)]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (path,) = target.iterdir()
    assert path.name == f"baton_serve-{PROJECT['version']}-py3-none-any.whl"
    with zipfile.ZipFile(path) as archive:
        yield archive


def _kept(folder: Path, names: list[str]) -> set[str]:
    if folder == ROOT:
        kept = {*PACKAGES, "tests", "bench", "deploy", "pyproject.toml", "setup.py", "README.md", "LICENSE"}
        return set(names) & kept
    return {name for name in names if name != "__pycache__"}


def files(archive: zipfile.ZipFile) -> set[str]:
    return {name for name in archive.namelist() if not name.partition("/")[0].endswith(".dist-info")}


EXTRAS = {name: [Requirement(item) for item in items] for name, items in PROJECT["optional-dependencies"].items()}
#: What asks for another extra of ours.
OWN = PROJECT["name"]


def test_everything_of_our_packages_is_in_it_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    ours = {
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".md"
    }
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
    assert wheel.read(file) == (ROOT / file).read_bytes()


def test_its_packages_are_called_as_nobody_elses() -> None:
    """Of all that is installed here."""
    for name, owners in packages_distributions().items():
        assert name not in PACKAGES or set(owners) == {"baton-serve"}, (name, owners)


def test_it_has_the_command_and_the_extras(wheel: zipfile.ZipFile) -> None:
    info = f"baton_serve-{PROJECT['version']}.dist-info"
    assert "baton = baton.__main__:main" in wheel.read(f"{info}/entry_points.txt").decode()
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
    hide = f"import sys; sys.modules[{PACKAGE!r}] = None; import baton.__main__ as m; m.main()"
    done = subprocess.run([sys.executable, "-c", hide], cwd=ROOT, capture_output=True, text=True, check=False)
    assert "pip install 'baton-serve[router]'" in done.stderr
