"""Baton's own router, started as somebody would start it who names the workers: all that is on by default is on."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from baton_serve.baton.processes.embedded_redis import EmbeddedRedis, EmbeddedRedisError
from bench.performance.machine import ROOT
from bench.router.harness.flow import Flow
from bench.router.routers.router import Command, Place, RouterError

NAME = "baton"
#: The name of the one whose hot modules are compiled.
COMPILED = "baton-compiled"


@dataclass(frozen=True)
class Baton:
    """The router of the checkout in ``folder``, with a Redis of its own, which runs beside the load.

    It runs in the environment of that checkout, and in this one where it has none.
    """

    name: str = NAME
    folder: Path = ROOT
    num_processes: int = 1
    flow: ClassVar[Flow] = Flow.P_THEN_D

    @contextmanager
    def command(self, place: Place) -> Iterator[Command]:
        """The command, while its Redis runs. Raises RouterError."""
        try:
            with EmbeddedRedis() as redis:
                os.sched_setaffinity(redis.pid, {place.cores.others})
                yield Command(self._argv(place, redis.url), self._environ(), self.folder, self.num_processes > 1)
        except EmbeddedRedisError as error:
            raise RouterError(f"{self.name}: {error}") from None

    def _argv(self, place: Place, redis_url: str) -> list[str]:
        own = self.folder / ".venv" / "bin" / "python"
        python = str(own) if own.exists() else sys.executable
        flags = ["--redis-url", redis_url, "--port", str(place.port)]
        flags += ["--processes", str(self.num_processes)] if self.num_processes > 1 else []
        for role, ports in (("prefill", place.engines.prefill), ("decode", place.engines.decode)):
            flags += [f"--{role}", ",".join(f"http://127.0.0.1:{port}" for port in ports)]
        module = "baton_serve" if (self.folder / "baton_serve").exists() else "baton"  # as older checkouts call it
        return [python, "-m", module, "router", *flags]

    def _environ(self) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith("BATON_")}
        return {**kept, "PYTHONPATH": str(self.folder), "PYTHONDONTWRITEBYTECODE": "1"}
