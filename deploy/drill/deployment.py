"""The compose project of a drill: its file, its containers, its end."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from deploy.drill.errors import DrillError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ROOT = Path(__file__).parents[2]
SCALE = {"router": 2, "prefill": 2, "decode": 3}
NUM_WORKERS = SCALE["prefill"] + SCALE["decode"]
#: Sequences that a D takes at once: so few that requests of a handful of clients have to wait.
SEQUENCES_PER_DECODE = 2
#: With so many streams each D is full; the requests that come then are held.
NUM_FULL = SCALE["decode"] * SEQUENCES_PER_DECODE


class Deployment:
    """A compose project. Methods raise CalledProcessError; compose has said on stderr why."""

    def __init__(self, file: Path, project: str) -> None:
        self.project = project
        self._command = [*compose_command(), "-f", str(file), "--project-directory", str(ROOT), "-p", project]

    def run(self, *arguments: str, environ: Mapping[str, str] | None = None) -> str:
        """Run a command of compose; returns what it printed."""
        environ = {**os.environ, **(environ or {})}
        command = [*self._command, *arguments]
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environ).stdout

    def containers(self, service: str) -> list[str]:
        """The ids of a service's containers that run, in no particular order."""
        ids = self.run("ps", "-q", service).split()
        return [each for each in ids if docker("inspect", "-f", "{{.State.Running}}", each) == "true"]

    def routers(self) -> dict[str, str]:
        """The base URL of each router by its container. It may change when the container is started again."""
        return {
            each: "http://" + docker("port", each, "8000/tcp").splitlines()[0] for each in self.containers("router")
        }


@contextlib.contextmanager
def deployed() -> Iterator[Deployment]:
    """Start the compose file as the drill needs it. Afterwards nothing of it is left but the images."""
    with project(drill_file()) as deployment:
        try:
            scale = [part for name, number in SCALE.items() for part in ("--scale", f"{name}={number}")]
            deployment.run("up", "-d", "--no-build", *scale)
            yield deployment
        finally:
            deployment.run("down", "--volumes", "--timeout", "5")


@contextlib.contextmanager
def project(content: dict[str, Any]) -> Iterator[Deployment]:
    """A project of its own for ``content``, which need not be the same as the file that it was read from."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "docker-compose.yml"
        file.write_text(yaml.safe_dump(content))
        yield Deployment(file, f"baton-test-{os.getpid()}")


def drill_file() -> dict[str, Any]:
    """The compose file, changed so that ports are free, workers share a machine, and each D is soon full."""
    content = compose_file()
    services = content["services"]
    services["router"]["ports"] = ["127.0.0.1::8000"]
    # All run on one machine: otherwise each worker would use every core, and health checks would start many processes.
    for role in ("prefill", "decode"):
        services[role]["environment"]["BATON_WORKER_TORCH_THREADS"] = "1"
        services[role]["healthcheck"] = {"interval": "30s"}
    services["decode"]["environment"]["BATON_WORKER_MAX_NUM_SEQS"] = str(SEQUENCES_PER_DECODE)
    return content


def compose_file() -> dict[str, Any]:
    """The compose file that users start, with absolute paths for the builds."""
    content: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    for service in content["services"].values():
        if "build" in service:
            service["build"]["context"] = str(ROOT)
    return content


def docker(*arguments: str) -> str:
    """Run a docker command; returns what it printed. Raises CalledProcessError."""
    return subprocess.run(["docker", *arguments], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


@functools.cache
def compose_command() -> list[str]:
    """The command for compose on this machine. Raises DrillError when there is none."""
    plugin = ["docker", "compose"]
    if (
        shutil.which("docker")
        and subprocess.run([*plugin, "version"], capture_output=True, check=False).returncode == 0
    ):
        return plugin
    if shutil.which("docker-compose"):
        return ["docker-compose"]
    raise DrillError("neither 'docker compose' nor docker-compose is installed")
