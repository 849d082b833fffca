"""One window of load on one router."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen

import msgspec

from bench.processes import start, stop
from bench.router.harness.cpu import Usage, usage_of
from bench.router.harness.engines import Engines
from bench.router.harness.sample import LoadResult, Sample
from bench.router.workloads import Workload

#: The router has load for so long before the window begins.
WARM_S = 0.7
#: What the load generator says at both ends of its window.
WORDS = ("begin", "end")


class LoadError(Exception):
    """The load generator has no result. The message is one line."""


@dataclass(frozen=True)
class Target:
    """A router that serves."""

    name: str
    port: int
    pid: int
    waits_for_p: bool


@dataclass(frozen=True)
class Load:
    """The load generator: its program, its log, and where it runs."""

    program: Path
    log: Path
    core: int

    def measure(self, workload: Workload, target: Target, engines: Engines, seconds: float | None = None) -> Sample:
        """Load a router for a window, of the workload's own length if ``seconds`` is None. Raises LoadError."""
        before = engines.counters()
        argv = arguments(workload, target.port, workload.seconds if seconds is None else seconds)
        process = start([str(self.program), *argv], self.log, frozenset({self.core}), pipe=True)
        try:
            begin, end = (self._usages(process, word, (target.pid, engines.pid, process.pid)) for word in WORDS)
            result = self._result(process)
        finally:
            stop(process)
        router, *harness = (late.cpu_s - early.cpu_s for early, late in zip(begin, end, strict=True))
        return Sample(
            router=target.name,
            workload=workload.name,
            load=result,
            router_cpu_s=router,
            harness_cpu_s=sum(harness),
            rss_mib=end[0].rss_bytes / 2**20,
            legs=tuple(number / max(1, result.started) for number in engines.counters().since(before)),
            floor_ms=workload.floor_ms(target.waits_for_p),
        )

    def _usages(self, process: Popen[str], word: str, pids: Sequence[int]) -> list[Usage]:
        """The usage of processes at the moment at which the generator says a word."""
        if self._line(process).strip() != word:
            raise LoadError(f"the load generator has ended early; see {self.log}")
        return [usage_of(pid) for pid in pids]

    def _result(self, process: Popen[str]) -> LoadResult:
        try:
            return msgspec.json.decode(self._line(process), type=LoadResult)
        except msgspec.MsgspecError as error:
            raise LoadError(f"the load generator has no result: {error}; see {self.log}") from None

    @staticmethod
    def _line(process: Popen[str]) -> str:
        assert process.stdout is not None
        return process.stdout.readline()


def arguments(workload: Workload, port: int, seconds: float) -> list[str]:
    """What the load generator is told, in the order in which it reads them."""
    numbers = (
        port,
        workload.num_connections,
        workload.rate,
        WARM_S,
        seconds,
        workload.max_tokens,
        int(workload.stream),
        workload.prompt_bytes,
        workload.interval_us,
        workload.prefill_us,
    )
    return [str(number) for number in numbers]
