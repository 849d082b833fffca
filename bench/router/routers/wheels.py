"""Routers from wheels, written in Rust, each in an environment of its own."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.router.harness.flow import Flow
from bench.router.routers.router import Command, Peer, Place


@dataclass(frozen=True)
class Wheel(Peer):
    """A router in the environment ``environment`` under ``peers``, where pip installs ``requirement``.

    Its ``bin`` has a script with the router's name. ``start`` is what is run there; ``prefill`` is behind the URL of
    each P.
    """

    peers: Path
    name: str
    environment: str
    requirement: str
    flow: Flow
    start: tuple[str, ...]
    prefill: tuple[str, ...] = ()

    @property
    def installed(self) -> bool:
        """See ``Peer``."""
        return (self.bin / self.name).exists()

    def fetch(self) -> None:
        """Install the wheel into an environment that is made for it."""
        self.peers.mkdir(parents=True, exist_ok=True)
        self._run([sys.executable, "-m", "venv", str(self.peers / self.environment)], self.peers)
        pip = [str(self.bin / "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check", self.requirement]
        self._run(pip, self.peers)

    @property
    def bin(self) -> Path:
        """The programs of its environment."""
        return self.peers / self.environment / "bin"

    @contextmanager
    def command(self, place: Place) -> Iterator[Command]:
        """The command: round robin, so that nothing is compared of prompts."""
        program, *flags = self.start
        argv = [str(self.bin / program), *flags, "--host", "127.0.0.1", "--port", str(place.port)]
        argv += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(place.second_port)]
        argv += ["--policy", "round_robin"]
        for port in place.engines.prefill:
            argv += ["--prefill", f"http://127.0.0.1:{port}", *self.prefill]
        for port in place.engines.decode:
            argv += ["--decode", f"http://127.0.0.1:{port}"]
        yield Command(argv)


def sglang_router(peers: Path) -> Wheel:
    """SGLang's router. 8998 is the port at which P and D would meet."""
    start = ("python", "-m", "sglang_router.launch_router", "--pd-disaggregation")
    return Wheel(peers, "sglang-router", "sglang", "sglang-router==0.3.2", Flow.P_AND_D, start, ("8998",))


def vllm_router(peers: Path) -> Wheel:
    """vLLM's router."""
    start = (
        "vllm-router",
        "--vllm-pd-disaggregation",
        "--kv-connector",
        "nixl",
        "--worker-startup-check-interval",
        "1",
    )
    return Wheel(peers, "vllm-router", "vllm", "vllm-router==0.1.17", Flow.P_THEN_D, start)
