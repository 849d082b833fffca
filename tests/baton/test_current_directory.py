"""Nothing that lies in the current directory is executed, neither by ``baton`` nor by what it starts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from baton_serve.baton.processes.child import COMMAND, Child, ChildSpec
from baton_serve.core.process.interpreter import ROOT, SAFE_PATH, with_import_path


def sprung(trap: Path) -> str:
    path = trap / "SPRUNG"
    return path.read_text() if path.exists() else ""


@pytest.mark.parametrize("entries", ["", ":", "/nowhere::"])
def test_python_m_baton(trap: Path, entries: str) -> None:
    """As where a wheel is installed: an editable installation runs code of its own (-S) before ours can do anything."""
    paths = [path for path in sys.path if path and not path.startswith(str(ROOT / "tests"))]
    environ = {**os.environ, "PYTHONPATH": entries + os.pathsep.join(paths)}
    command = (sys.executable, "-S", "-m", "baton_serve", "worker", "--help")
    done = subprocess.run(command, cwd=trap, env=environ, capture_output=True, text=True, check=False)
    assert sprung(trap) == ""
    assert (done.returncode, done.stderr) == (0, "")


async def test_a_child(trap: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(trap)
    child = Child(
        ChildSpec("it", (*COMMAND, "router"), {**os.environ, "PYTHONPATH": ":workers", "BATON_ROUTER_PORT": "no"}),
        trap / "log",
        lambda *_: None,
    )
    await child.start()
    assert (await child.ended()).startswith("it: ended with exit code 2: baton: BATON_ROUTER_PORT: ")
    await child.stop(0)
    assert sprung(trap) == ""


@pytest.mark.parametrize(
    ("given", "passed_on"),
    [(None, str(ROOT)), ("", str(ROOT)), (":", str(ROOT)), (":/x:y:./z:", f"{ROOT}:/x"), (f"/x:{ROOT}", f"{ROOT}:/x")],
)
def test_what_children_import_from(given: str | None, passed_on: str) -> None:
    environ = {"A": "1"} if given is None else {"A": "1", "PYTHONPATH": given}
    assert with_import_path(environ) == {"A": "1", "PYTHONPATH": passed_on, **SAFE_PATH}


def test_what_a_child_starts_imports_nothing_there_either(trap: Path) -> None:
    """Without an option of its own, as libraries start an interpreter."""
    (trap / "baton_serve.py").write_text((trap / "click.py").read_text())
    program = "from baton_serve import core, router"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {program!r}], check=True)"
    environ = with_import_path(os.environ)
    subprocess.run((sys.executable, "-P", "-c", code), cwd=trap, env=environ, check=True)
    assert sprung(trap) == ""


def test_where_pip_installed_us_nothing_is_added(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("baton_serve.core.process.interpreter.ROOT", ROOT / "site-packages")
    monkeypatch.setattr("site.getsitepackages", lambda: [str(ROOT / "site-packages")])
    assert with_import_path({"PYTHONPATH": ":"}) == SAFE_PATH
    assert with_import_path({"PYTHONPATH": "/x:"}) == {"PYTHONPATH": "/x", **SAFE_PATH}
