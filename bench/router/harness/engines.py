"""The stub engines: two P and two D in one process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import msgspec
from msgspec.structs import astuple

from baton_serve.baton.processes.vllm.held_ports import HeldPorts
from bench.processes import start, stop

NUM_EACH = 2


class EngineError(Exception):
    """The stub engines do not run. The message is one line."""


class Counters(msgspec.Struct, frozen=True):
    """What was asked of all engines together: answers of P, of D with P's blocks and without, SGLang's kind of both."""

    prefills: int
    decodes_with_kv: int
    decodes_without_kv: int
    bootstraps: int

    def since(self, earlier: Counters) -> tuple[int, ...]:
        """How many more there are, in the order of the fields."""
        return tuple(late - early for late, early in zip(astuple(self), astuple(earlier), strict=True))


@dataclass(frozen=True)
class Engines:
    """The engines, which serve on these loopback ports."""

    pid: int
    prefill: tuple[int, ...]
    decode: tuple[int, ...]

    def counters(self) -> Counters:
        """What was asked of them up to now."""
        answer = httpx.get(f"http://127.0.0.1:{self.decode[0]}/stub/counters", trust_env=False)
        return msgspec.json.decode(answer.content, type=Counters)


@contextmanager
def engines(program: Path, log: Path, core: int) -> Iterator[Engines]:
    """Run them while inside. Raises EngineError."""
    with HeldPorts() as ports:
        prefill, decode = (tuple(ports.take() for _ in range(NUM_EACH)) for _ in range(2))
        places = [f"{role}:{port}" for role, each in (("P", prefill), ("D", decode)) for port in each]
        process = start([str(program), *places], log, frozenset({core}), pipe=True)
        try:
            assert process.stdout is not None
            if process.stdout.readline() != "ready\n":
                raise EngineError(f"the stub engines did not start; see {log}")
            yield Engines(process.pid, prefill, decode)
        finally:
            stop(process)
