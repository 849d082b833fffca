"""Two engines of real rank processes: one prefills, the other reads its blocks over NIXL and goes on."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace

from baton_serve.core.protocol.steps import (
    Connect,
    Connected,
    FromRank,
    NewSequence,
    Read,
    ReadResult,
    Row,
    Step,
    ToRank,
    TransferReport,
)
from tests.kits.rank.driver import GREEDY, Reference, prompt
from tests.kits.rank.group_driver import GroupDriver, spec_of
from tests.kits.rank.models import Folders, References

P_BLOCKS, D_BLOCKS = [5, 2, 7], [1, 6, 3]
VERSIONS = [2**63 + 1, 2**63 + 2, 2**63 + 3]


class Engine(GroupDriver):
    """A group of ranks whose blocks others may read."""

    async def open(self, folder: Path, engine_id: str, device: str = "cpu") -> Engine:
        spec = replace(spec_of(folder, len(self.events), device), engine_id=engine_id, num_blocks=8, transfer="nixl")
        self.group = await self.start(spec)
        return self

    async def ask(self, message: ToRank) -> list[FromRank]:
        """What each rank answers."""
        self.group.send(message)
        return [await queue.get() for queue in self.events]

    async def read(self, read_id: int, fresh: list[tuple[int, int]]) -> list[ReadResult]:
        results = []
        for report in await self.ask(Read(read_id, "p", "lease", P_BLOCKS, D_BLOCKS, VERSIONS[-1], fresh)):
            assert isinstance(report, TransferReport)
            assert not report.sent
            results += report.received
        return results

    async def told(self) -> list[str]:
        """The leases that each rank's readers have read."""
        leases = []
        for queue in self.events:
            report = await queue.get()
            assert isinstance(report, TransferReport)
            assert not report.received
            leases += [sent.lease_id for sent in report.sent]
        return leases

    async def sample(self, start: list[NewSequence], row: Row, fresh: list[tuple[int, int]]) -> int:
        result, *_ = await self.execute(self.group, Step(1, fresh, [], start, [row]))
        return result.sampled[0].token


@pytest.mark.slow
@pytest.mark.parametrize(("p_ranks", "d_ranks"), [(1, 2), (1, 1), (2, 1)])
async def test_a_prompt_prefilled_elsewhere_is_continued(
    p_ranks: int, d_ranks: int, folder_of: Folders, reference_of: References
) -> None:
    folder = folder_of("mistral")
    p, d = await asyncio.gather(Engine(p_ranks).open(folder, "p"), Engine(d_ranks).open(folder, "d"))
    await check_hand_off(p, d, reference_of("mistral"))


@pytest.mark.gpu
@pytest.mark.parametrize(("p_device", "d_device"), [("cuda", "cuda"), ("cpu", "cuda"), ("cuda", "cpu")])
async def test_blocks_are_read_from_a_gpu_and_into_one(
    p_device: str, d_device: str, folder_of: Folders, reference_of: References
) -> None:
    folder = folder_of("mistral")
    p, d = await asyncio.gather(Engine(1).open(folder, "p", p_device), Engine(1).open(folder, "d", d_device))
    await check_hand_off(p, d, reference_of("mistral"))


async def check_hand_off(p: Engine, d: Engine, reference: Reference) -> None:
    """P computes a prompt, D reads it and continues as ``reference`` does; then P takes a block, and D notices."""
    p_ranks, d_ranks = len(p.events), len(d.events)
    tokens = prompt(40, 0)
    expected = reference.generate(tokens, 6)
    try:
        assert p.group.readies[0].compatibility.hash == d.group.readies[0].compatibility.hash
        fresh = list(zip(P_BLOCKS, VERSIONS, strict=True))
        first = await p.sample([NewSequence(1, tokens, [], GREEDY, P_BLOCKS)], Row(1, 0, 40, [], True), fresh)

        assert await d.ask(Connect("p", p.group.metadata)) == [Connected("p", "")] * d_ranks
        reads = await d.read(1, [(block, 9) for block in D_BLOCKS])
        assert [read.outcome for read in reads] == ["done"] * d_ranks
        assert sum(read.num_bytes for read in reads) == 3 * sum(ready.block_bytes for ready in d.group.readies)
        assert await p.told() == ["lease"] * p_ranks

        got = [first]
        start = [NewSequence(1, tokens, [first], GREEDY, D_BLOCKS)]
        while len(got) < 6:
            got.append(await d.sample(start, Row(1, 39 + len(got), 1, [], True), []))
            start = []
        assert got == expected

        # P overwrites one of the blocks: the same read is not what was promised any more.
        await p.ask(Step(2, [(P_BLOCKS[1], VERSIONS[-1] + 1)], [], [], []))
        for stale in await d.read(2, []):
            assert (stale.outcome, stale.stale_blocks) == ("stale", [D_BLOCKS[1]])
    finally:
        await asyncio.gather(p.group.stop(), d.group.stop())
