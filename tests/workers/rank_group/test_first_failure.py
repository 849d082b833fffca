"""Whose end people hear of when several ranks end together."""

from __future__ import annotations

import asyncio

from baton_serve.workers.rank_group.first_failure import FirstFailure
from baton_serve.workers.rank_protocol.errors import RankDeadError


class Ends(FirstFailure):
    """Keeps what is reported."""

    def __init__(self, num_ranks: int, grace_s: float = 3600) -> None:
        super().__init__(num_ranks, self.on_end, grace_s)
        self.reported: list[tuple[int, str]] = []
        self.any = asyncio.Event()

    def on_end(self, rank: int, error: Exception) -> None:
        self.reported.append((rank, str(error)))
        self.any.set()


def consequence() -> RankDeadError:
    return RankDeadError("lost another rank", in_consequence=True)


async def test_a_reason_wins_over_its_consequences() -> None:
    ends = Ends(3)
    ends.handle(0, consequence())
    assert not ends.is_over
    ends.handle(2, RankDeadError("killed"))
    ends.handle(1, consequence())
    ends.handle(0, RankDeadError("killed as well"))
    assert ends.reported == [(2, "killed")]


async def test_a_reason_is_reported_at_once() -> None:
    ends = Ends(2)
    ends.handle(1, RuntimeError("anything"))
    assert ends.reported == [(1, "anything")]
    assert ends.is_over


async def test_consequences_of_nothing_are_reported_when_no_rank_is_left() -> None:
    ends = Ends(2)
    ends.handle(0, consequence())
    ends.handle(1, consequence())
    assert ends.reported == [(1, "lost another rank")]


async def test_a_consequence_is_reported_when_no_reason_follows() -> None:
    ends = Ends(2, grace_s=0.0)
    ends.handle(1, consequence())
    await ends.any.wait()
    assert ends.reported == [(1, "lost another rank")]


async def test_nothing_is_reported_after_the_close() -> None:
    ends = Ends(2, grace_s=0.0)
    ends.handle(1, consequence())
    ends.close()
    ends.handle(0, RankDeadError("killed"))
    # A timer of no delay would have fired before this one.
    fired = asyncio.Event()
    asyncio.get_running_loop().call_later(0, fired.set)
    await fired.wait()
    assert ends.reported == []
