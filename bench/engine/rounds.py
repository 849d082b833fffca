"""Interleaved runs of one setup: each server does the same work before the next kind of work begins."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from baton_serve.baton.processes.vllm.program import VllmProgram
from bench.client import Client
from bench.engine.servers import MODEL, Server, baton_spec, running, vllm_running
from bench.engine.setups import Setup
from bench.engine.work import SLACK, Ask, Trace, Work
from bench.report.spread import spread

BATON = "baton"
#: Longest wait for an answer, seconds.
ANSWER_TIMEOUT_S = 300.0


@dataclass(frozen=True)
class Cell:
    """One kind of work in one setup: a rate for each run, by server."""

    setup: Setup
    work: Work
    rates: dict[str, list[float]] = field(default_factory=dict)

    @property
    def ratios(self) -> list[float]:
        """Baton's rate over vLLM's of the same run; empty without vLLM."""
        others = [rates for name, rates in self.rates.items() if name != BATON]
        return [mine / theirs for mine, theirs in zip(self.rates[BATON], others[0], strict=True)] if others else []


async def measure(
    setup: Setup, vllm: VllmProgram | None, runs: int, folder: Path, say: Callable[[str], None]
) -> list[Cell]:
    """All cells of a setup. Of vLLM compiled and eager the one counts that was faster in a first run.

    Raises ChildDiedError, and AnswerError for a wrong answer.
    """
    async with AsyncExitStack() as stack:
        servers: list[Server] = []
        for starting in _starts(setup, vllm, folder):
            with ExitStack() as others:
                for server in servers:
                    others.enter_context(server.stopped())
                servers.append(await stack.enter_async_context(starting))
            say(f"{setup}: {servers[-1].name} serves")
        rounds = _Rounds(servers, runs)
        cells = []
        for work in setup.works:
            cells.append(Cell(setup, *await rounds.measure(work)))
            say(describe(cells[-1]))
    return cells


def _starts(setup: Setup, vllm: VllmProgram | None, folder: Path) -> Iterator[AbstractAsyncContextManager[Server]]:
    folder = folder / str(setup).replace(" ", "-")
    folder.mkdir(parents=True, exist_ok=True)
    yield running(BATON, baton_spec(setup), folder)
    if vllm is not None:
        for is_compiled in (True, False):
            yield vllm_running(vllm, setup, folder, is_compiled=is_compiled)


class _Rounds:
    def __init__(self, servers: Sequence[Server], runs: int) -> None:
        self._servers = servers
        self._runs = runs
        self._seed = 0

    async def measure(self, work: Work) -> tuple[Work, dict[str, list[float]]]:
        """The work as it was done, and the rates of Baton and of the better vLLM."""
        if isinstance(work, Trace):
            bursts_s = [await self._burst_s(work, each) for each in self._servers]
            work = replace(work, seconds=SLACK * max(bursts_s))
        first = {server: await self._run(work, server) for server in self._servers}
        compared = [server for server in self._servers if server.name == BATON]
        compared += sorted((each for each in first if each.name != BATON), key=lambda each: -first[each])[:1]
        rates: dict[str, list[float]] = {server.name: [] for server in compared}
        for number in range(self._runs):
            self._seed += 1
            for server in compared[:: 1 if number % 2 == 0 else -1]:
                rates[server.name].append(await self._run(work, server))
        return work, rates

    @asynccontextmanager
    async def _alone(self, server: Server) -> AsyncIterator[Ask]:
        """Only this server computes inside."""
        with ExitStack() as others:
            for other in self._servers:
                if other is not server:
                    others.enter_context(other.stopped())
            async with Client(ANSWER_TIMEOUT_S) as client:
                yield Ask(client, server.url, MODEL)

    async def _run(self, work: Work, server: Server) -> float:
        async with self._alone(server) as ask:
            return await work.run(ask, self._seed)

    async def _burst_s(self, work: Trace, server: Server) -> float:
        async with self._alone(server) as ask:
            return await work.burst_s(ask, self._seed)


def describe(cell: Cell) -> str:
    """One line: the rates, and their ratio."""
    rates = ", ".join(f"{name} {spread(rates)}" for name, rates in cell.rates.items())
    return f"{cell.setup}, {cell.work.name}: {rates} {cell.work.unit}; ratio {spread(cell.ratios)}"
