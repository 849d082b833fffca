"""A group of rank processes, driven as a scheduler would."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from baton_serve.baton.cluster.process import command_line
from baton_serve.core.process.descendants import children_of
from baton_serve.core.protocol.steps import FromRank, Progress, Step, StepResult
from baton_serve.workers.rank_group.group import RankGroup
from baton_serve.workers.rank_protocol.errors import RankDeadError
from baton_serve.workers.rank_protocol.spec import RankSpec
from tests.kits.rank.driver import NUM_BLOCKS, Job, Planner

ENVIRON = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def spec_of(folder: Path | str, num_ranks: int, device: str = "cpu") -> RankSpec:
    return RankSpec(
        model=str(folder),
        engine_id="e",
        num_ranks=num_ranks,
        device=device,
        dtype="float32",
        num_blocks=NUM_BLOCKS,
        transfer="none",
    )


class GroupDriver:
    """Keeps what the ranks say, each in its own queue."""

    def __init__(self, num_ranks: int) -> None:
        self.events: list[asyncio.Queue[FromRank]] = [asyncio.Queue() for _ in range(num_ranks)]
        self.progress: list[str] = []
        self.deaths: list[str] = []
        self.died = asyncio.Event()
        self.loading = asyncio.Event()
        self.planner = Planner(16)

    async def start(self, spec: RankSpec) -> RankGroup:
        return await RankGroup.start(spec, self.on_event, self.on_death, environ=ENVIRON)

    def on_event(self, rank: int, event: FromRank) -> None:
        assert not self.deaths, "nothing comes after a death"
        if isinstance(event, Progress):
            self.progress.append(event.text)
            self.loading.set()
        else:
            self.events[rank].put_nowait(event)

    def on_death(self, error: RankDeadError) -> None:
        self.deaths.append(str(error))
        self.died.set()

    async def run(self, group: RankGroup, jobs: list[Job]) -> list[list[int]]:
        """Run until all are finished; what each sampled, of which the first rank alone says anything."""
        while any(not job.finished for job in jobs):
            first, *others = await self.execute(group, self.planner.plan(jobs))
            for other in others:
                assert (other.sampled, other.scores) == ([], [])
            self.planner.record(jobs, first)
        return [[one.token for one in job.sampled] for job in jobs]

    async def execute(self, group: RankGroup, step: Step) -> list[StepResult]:
        """What each rank makes of a step."""
        group.send(step)
        results = []
        for queue in self.events:
            result = await queue.get()
            assert isinstance(result, StepResult)
            results.append(result)
        return results


def children() -> set[int]:
    """Processes of ours, the dead that nobody has collected included."""
    return set(children_of(os.getpid()))


def gone(pid: int) -> bool:
    """Not there, or nothing but an exit status that somebody has yet to collect."""
    return not command_line(pid)
