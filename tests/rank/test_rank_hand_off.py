"""Two rank processes: one prefills, the other reads its blocks over NIXL and goes on."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from rank_driver import GREEDY, prompt

from protocol.steps import (
    Connect,
    Connected,
    FromRank,
    NewSequence,
    PeerRead,
    Progress,
    Read,
    ReadResult,
    Row,
    SamplingParams,
    Step,
    StepResult,
)
from workers.rank.link import RankLink
from workers.rank.spec import RankSpec

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rank_driver import Reference

    from protocol.steps import ToRank

P_BLOCKS, D_BLOCKS = [5, 2, 7], [1, 6, 3]
VERSIONS = [2**63 + 1, 2**63 + 2, 2**63 + 3]


class Rank:
    """One rank and what it said."""

    def __init__(self) -> None:
        self.events: asyncio.Queue[FromRank] = asyncio.Queue()

    async def start(self, folder: Path, engine_id: str) -> Rank:
        spec = RankSpec(model=str(folder), engine_id=engine_id, device="cpu", num_blocks=8)
        self.link = await RankLink.start(spec, self._keep, environ={"OMP_NUM_THREADS": "1"})
        return self

    def _keep(self, event: FromRank) -> None:
        if not isinstance(event, Progress):
            self.events.put_nowait(event)

    async def ask(self, message: ToRank) -> FromRank:
        self.link.send(message)
        return await self.events.get()

    async def sample(self, start: list[NewSequence], row: Row, fresh: list[tuple[int, int]]) -> int:
        result = await self.ask(Step(1, fresh, [], start, [row]))
        assert isinstance(result, StepResult)
        return result.sampled[0].token


async def test_a_prompt_prefilled_elsewhere_is_continued(
    folder_of: Callable[[str], Path], reference_of: Callable[[str], Reference]
) -> None:
    tokens = prompt(40, 0)
    expected = reference_of("mistral").generate(tokens, 6)
    p, d = await asyncio.gather(Rank().start(folder_of("mistral"), "p"), Rank().start(folder_of("mistral"), "d"))
    try:
        assert p.link.ready.compatibility.hash == d.link.ready.compatibility.hash
        fresh = list(zip(P_BLOCKS, VERSIONS, strict=True))
        first = await p.sample([NewSequence(1, tokens, [], GREEDY, P_BLOCKS)], Row(1, 0, 40, [], True), fresh)

        assert await d.ask(Connect("p", [p.link.metadata])) == Connected("p", "")
        read = await d.ask(Read(1, "p", "lease", P_BLOCKS, D_BLOCKS, VERSIONS, [(block, 9) for block in D_BLOCKS]))
        assert isinstance(read, ReadResult)
        assert (read.outcome, read.num_bytes) == ("done", 3 * d.link.ready.block_bytes)
        assert await p.events.get() == PeerRead("lease")

        got = [first]
        start = [NewSequence(1, tokens, [first], SamplingParams(temperature=0.0), D_BLOCKS)]
        while len(got) < 6:
            got.append(await d.sample(start, Row(1, 39 + len(got), 1, [], True), []))
            start = []
        assert got == expected

        # P overwrites one of the blocks: the same read is not what was promised any more.
        await p.ask(Step(2, [(P_BLOCKS[1], 5)], [], [], []))
        stale = await d.ask(Read(2, "p", "lease", P_BLOCKS, D_BLOCKS, VERSIONS, []))
        assert isinstance(stale, ReadResult)
        assert stale.outcome == "stale"
    finally:
        await asyncio.gather(p.link.stop(), d.link.stop())
