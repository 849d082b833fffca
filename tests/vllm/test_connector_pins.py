"""The list of what vLLM brings is true of a real environment, and pip would change nothing there for the connector."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from pathlib import Path

import pytest

from baton_serve.baton.processes.vllm.program import find_vllm
from tests.kits.vllm.pins import PROJECT, RECORDED, REDIS_CLIENT, ROOT, changes, requirements
from tests.vllm.conftest import VARIABLE

#: What the package is built from.
SOURCES = ("baton_serve", "core", "router", "workers", "baton", "pyproject.toml", "README.md", "LICENSE")


@pytest.fixture(scope="module")
def python() -> str:
    """The Python of vLLM's environment."""
    command = find_vllm(os.environ[VARIABLE]).command
    if "-m" not in command:
        pytest.skip(f"{command[0]} is not run by a Python that could be asked")
    return command[0]


async def said(*command: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *command, cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    return out.decode()


async def test_the_list_is_true(python: str) -> None:
    """vLLM requires the same; versions that it leaves open may be newer in an environment that was made later."""
    real, listed = json.loads(await said(python, "deploy/vllm_packages.py")), RECORDED
    assert (real["vllm"], real["requires"]) == (listed["vllm"], listed["requires"])
    for extra in ("connector", "router"):
        wanted = requirements(extra, "3.11")
        assert changes(wanted, real["packages"]) == changes(wanted, listed["packages"])


async def test_pip_would_install_baton_and_nothing_else(python: str, tmp_path: Path) -> None:
    """Without an index, so what is missing would fail. The environment has the connector, so the client of Redis, too.

    pip reads a copy: building leaves files behind, here as in the environment of an editable install.
    """
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tmp_path / name, symlinks=True)
        else:
            shutil.copy(ROOT / name, tmp_path / name)
    before = await said(python, "-m", "pip", "freeze", "--all")
    pip = (python, "-m", "pip", "--disable-pip-version-check", "--no-input", "install", "--quiet")
    options = ("--dry-run", "--no-index", "--no-build-isolation", "--report", "-")
    report = json.loads(await said(*pip, *options, f"{tmp_path}[connector]"))
    assert {one["metadata"]["name"] for one in report["install"]} == {PROJECT["name"]}
    assert await said(python, "-m", "pip", "freeze", "--all") == before
    assert f"\n{REDIS_CLIENT}==" in before
