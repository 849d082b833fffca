"""Checks from inside each container that it can do and reach nothing more than it needs."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

from deploy.drill.deployment import docker
from deploy.drill.errors import DrillError
from deploy.drill.peace import say

if TYPE_CHECKING:
    from deploy.drill.deployment import Deployment
    from deploy.drill.peace import Stage

#: The secrets that each service is given.
SECRETS = {
    "router": {"admin-token", "api-keys", "internal-token", "redis-password"},
    "prefill": {"internal-token", "redis-password"},
    "decode": {"internal-token", "redis-password"},
    "redis": {"redis-password", "redis.conf"},
}
#: Lines of ``/proc/1/status``: the process has no capability, can never get one, and gets no rights by running a file.
LOCKED = {"CapEff": "0" * 16, "CapPrm": "0" * 16, "CapBnd": "0" * 16, "NoNewPrivs": "1"}
#: Run in the network of Prometheus: prints which metrics it cannot get, and whether it can reach Redis by its name or
#: its address.
REACH = """
import socket, sys, urllib.request
for name, port in (("router", 8000), ("prefill", 8100), ("decode", 8100)):
    for address in {each[4][0] for each in socket.getaddrinfo(name, port)}:
        try:
            urllib.request.urlopen(f"http://{address}:{port}/metrics", timeout=10).close()
        except OSError as error:
            print(f"the metrics of {name} cannot be had: {error};")
for place in ("redis", sys.argv[1]):
    try:
        socket.create_connection((place, 6379), 2).close()
        print(f"{place} can be reached;")
    except OSError:
        pass
"""


def try_the_doors(stage: Stage) -> None:
    """Check all containers. Raises DrillError for the first thing that a container can do and should not."""
    deployment = stage.deployment
    for service, secrets in SECRETS.items():
        for container in deployment.containers(service):
            _check_container(service, container, secrets)
    (redis,) = deployment.containers("redis")
    _check_redis(deployment, redis)
    say("no container has more secrets, rights or ways than it needs")


def _check_container(service: str, container: str, secrets: set[str]) -> None:
    given = set(docker("exec", container, "ls", "-A", "/run/baton").split())
    if given != secrets:
        raise DrillError(f"{service} can read {sorted(given)} and needs {sorted(secrets)}")
    lines = docker("exec", container, "cat", "/proc/1/status").splitlines()
    status = {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
    if wrong := {name: status[name] for name, value in LOCKED.items() if status[name] != value}:
        raise DrillError(f"processes of {service} may do too much: {wrong}")
    for path in ("/new-file", "/run/baton/new-file", "/home/new-file"):
        if _succeeds("exec", "--user", "0", container, "touch", path):
            raise DrillError(f"{service} can write {path}")


def _check_redis(deployment: Deployment, container: str) -> None:
    said = docker("exec", container, "redis-cli", "keys", "*")
    if "NOAUTH" not in said:
        raise DrillError(f"Redis answers without a password: {said}")
    address = docker("inspect", "-f", "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}", container)
    network = f"{deployment.project}_default"
    python = ("--entrypoint", "python", "baton-router", "-c", REACH, address)
    if reached := docker("run", "--rm", "--network", network, *python):
        raise DrillError(f"where Prometheus is, {reached}")


def _succeeds(*arguments: str) -> bool:
    return subprocess.run(["docker", *arguments], capture_output=True, check=False).returncode == 0
