"""``make test-compose``: the compose file with several of everything, and one of each killed while clients stream.

Needs a Docker engine and compose, new or 1.29. Works on a project of its own, on ports that the engine chooses, and
takes it down again whatever happens. Exit code 0: answers went on after each kill, and no lease was left.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import openai
import stand_in_bases
import yaml

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).parents[1]
SCALE = {"router": 2, "prefill": 2, "decode": 3}
NUM_WORKERS = SCALE["prefill"] + SCALE["decode"]
#: Streams that run while something is killed, and questions that must be answered afterwards.
NUM_STREAMS, NUM_QUESTIONS = 6, 5
START_S, RECOVERY_S, LEASES_S = 300.0, 60.0, 60.0
QUESTION: Any = [{"role": "user", "content": "What is a lease?"}]


class DrillError(Exception):
    """What did not happen, in one line."""


class Deployment:
    """One compose project. Methods raise CalledProcessError with what compose said on stderr."""

    def __init__(self, file: Path, project: str) -> None:
        self._command = [*compose(), "-f", str(file), "--project-directory", str(ROOT), "-p", project]

    def run(self, *arguments: str) -> str:
        return subprocess.run([*self._command, *arguments], check=True, stdout=subprocess.PIPE, text=True).stdout

    def containers(self, service: str) -> list[str]:
        """Ids of those that run, in no particular order."""
        ids = self.run("ps", "-q", service).split()
        return [each for each in ids if docker("inspect", "-f", "{{.State.Running}}", each) == "true"]

    def routers(self) -> dict[str, str]:
        """Container to base URL."""
        return {
            each: "http://" + docker("port", each, "8000/tcp").splitlines()[0] for each in self.containers("router")
        }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--no-build", action="store_true", help="use the images that are there")
    parser.add_argument(
        "--stand-in-bases",
        action="store_true",
        help="make the base images from Debian packages where no registry has them; needs root and debootstrap",
    )
    stand_in_bases.add_arguments(parser)
    arguments = parser.parse_args()
    try:
        if arguments.stand_in_bases:
            stand_in_bases.provide(arguments)
        with deployed(build=not arguments.no_build, host_network=arguments.stand_in_bases) as deployment:
            drill(deployment)
    except (DrillError, stand_in_bases.StandInError, subprocess.CalledProcessError) as error:
        print(f"test-compose: {error}", file=sys.stderr)
        return 1
    return 0


def drill(deployment: Deployment) -> None:
    """Kill one of each kind. Raises DrillError."""
    routers = deployment.routers()
    token = docker("exec", next(iter(routers)), "cat", "/run/baton/admin-token")
    for url in routers.values():
        until(START_S, f"{url} knows {NUM_WORKERS} workers", partial(all_reachable, url, token))
    say(f"{len(routers)} routers know {NUM_WORKERS} workers")
    for service in ("prefill", "decode", "redis", "router"):
        victim = deployment.containers(service)[0]
        urls = list(deployment.routers().values())
        with ThreadPoolExecutor(NUM_STREAMS) as pool:
            streams = [pool.submit(stream, urls[n % len(urls)]) for n in range(NUM_STREAMS)]
            docker("kill", victim)
            if service == "redis":  # there is one; it comes back empty
                docker("start", victim)
            answers_go_on(list(deployment.routers().values()))
            say(f"killed one {service}: {count(streams)}")
    for url in deployment.routers().values():
        until(LEASES_S, f"{url} sees no lease", partial(no_lease, url, token))
    say("no lease is left")


def stream(url: str, max_tokens: int = 200) -> str:
    """``answered``, or what went wrong."""
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=RECOVERY_S)
    try:
        chunks = client.chat.completions.create(
            model=client.models.list().data[0].id, messages=QUESTION, max_tokens=max_tokens, stream=True
        )
        return "answered" if [chunk for chunk in chunks if chunk.choices] else "empty"
    except openai.OpenAIError as error:
        return type(error).__name__


def answers_go_on(urls: list[str]) -> None:
    """Each router answers again, and then always."""
    for url in urls:
        until(RECOVERY_S, f"{url} answers", partial(answers, url))
        found = Counter(stream(url, 16) for _ in range(NUM_QUESTIONS))
        if found != {"answered": NUM_QUESTIONS}:
            raise DrillError(f"{url} had answered again, and then: {dict(found)}")


def count(streams: list[Future[str]]) -> str:
    found = Counter(future.result() for future in streams)
    return "streams " + ", ".join(f"{number} {outcome}" for outcome, number in sorted(found.items()))


def all_reachable(url: str, token: str) -> bool:
    workers = ask(f"{url}/admin/workers", token)["workers"]
    return len([worker for worker in workers if worker["healthy"]]) == NUM_WORKERS


def no_lease(url: str, token: str) -> bool:
    leases: list[Any] = ask(f"{url}/admin/leases", token)["leases"]
    return not leases


def answers(url: str) -> bool:
    return stream(url, 16) == "answered"


def ask(url: str, token: str) -> Any:
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=10) as response:
        return json.load(response)


def until(limit_s: float, what: str, holds: Callable[[], bool]) -> None:
    """Ask again and again: nobody outside the containers is told of what happens in them."""
    end_s = time.monotonic() + limit_s
    while time.monotonic() < end_s:
        with contextlib.suppress(OSError, ValueError, LookupError):
            if holds():
                return
        time.sleep(0.5)
    raise DrillError(f"not within {limit_s:.0f} s: {what}")


@contextlib.contextmanager
def deployed(build: bool, host_network: bool) -> Iterator[Deployment]:
    """The compose file with ports that are free, started; nothing of it is left afterwards but the images.

    With ``host_network`` the build reaches what this machine reaches, an index on its loopback address included.
    """
    content = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    content["services"]["router"]["ports"] = ["127.0.0.1::8000"]
    for service in content["services"].values():
        if "build" in service:
            service["build"]["context"] = str(ROOT)
            if host_network:
                service["build"]["network"] = "host"
    for role in ("prefill", "decode"):  # one machine has them all, and each would take every core
        content["services"][role]["environment"]["BATON_WORKER_TORCH_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "docker-compose.yml"
        file.write_text(yaml.safe_dump(content))
        deployment = Deployment(file, f"baton-test-{os.getpid()}")
        if build:
            deployment.run("build")
        try:
            scale = [part for name, number in SCALE.items() for part in ("--scale", f"{name}={number}")]
            deployment.run("up", "-d", "--no-build", *scale)
            yield deployment
        finally:
            deployment.run("down", "--volumes", "--timeout", "5")


def compose() -> list[str]:
    """How compose is called here. Raises DrillError."""
    plugin = ["docker", "compose"]
    if (
        shutil.which("docker")
        and subprocess.run([*plugin, "version"], capture_output=True, check=False).returncode == 0
    ):
        return plugin
    if shutil.which("docker-compose"):
        return ["docker-compose"]
    raise DrillError("neither 'docker compose' nor docker-compose is installed")


def docker(*arguments: str) -> str:
    return subprocess.run(["docker", *arguments], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
