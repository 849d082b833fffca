"""The lease store does not take releases: P is asked itself, in one call at a time, and nobody waits for it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from baton_serve.core.protocol.leases_at_p import MAX_LEASES
from baton_serve.router.upstream.direct_releases import DirectReleases
from tests.kits.router.cluster import Cluster, eventually


class Confirmed:
    """What was confirmed, by engine."""

    def __init__(self, cluster: Cluster) -> None:
        self.leases: list[tuple[str, str]] = []
        self.calls = DirectReleases(cluster.internal_calls, cluster.pool.with_engine, self._note)

    def _note(self, engine_id: str, lease_ids: Sequence[str]) -> None:
        self.leases += [(engine_id, lease_id) for lease_id in lease_ids]


async def test_each_engine_is_asked_to_release_its_own_leases(cluster: Cluster) -> None:
    first, second = await cluster.fleet("prefill", "prefill")
    told = Confirmed(cluster)
    told.calls.start(first.engine_id, ["a", "b"])
    told.calls.start(second.engine_id, ["c"])
    told.calls.start("gone", ["d"])
    await told.calls.close()
    assert (first.releases, second.releases) == ([["a", "b"]], [["c"]])
    assert sorted(told.leases) == [(first.engine_id, "a"), (first.engine_id, "b"), (second.engine_id, "c")]


async def test_releases_that_come_during_a_call_wait_for_the_next(cluster: Cluster) -> None:
    p = await cluster.add("prefill")
    told = Confirmed(cluster)
    p.release_gate.clear()
    told.calls.start(p.engine_id, ["a"])
    await eventually(lambda: p.releases == [["a"]])
    told.calls.start(p.engine_id, ["b", "c"])
    told.calls.start(p.engine_id, ["c", "d"])
    assert told.leases == []
    p.release_gate.set()
    await told.calls.close()
    assert p.releases == [["a"], ["b", "c", "d"]]
    assert [lease_id for _, lease_id in told.leases] == ["a", "b", "c", "d"]


async def test_many_leases_are_several_calls(cluster: Cluster) -> None:
    p = await cluster.add("prefill")
    told = Confirmed(cluster)
    lease_ids = [f"l{number}" for number in range(2 * MAX_LEASES + 1)]
    told.calls.start(p.engine_id, lease_ids)
    await told.calls.close()
    assert [len(asked) for asked in p.releases] == [MAX_LEASES, MAX_LEASES, 1]
    assert [lease_id for _, lease_id in told.leases] == lease_ids


@pytest.mark.parametrize(
    "answer", [(404, "{}"), (200, "no JSON"), (200, '{"x":' + "[" * 50_000), (500, '{"released": 1}')]
)
async def test_a_lease_that_p_does_not_confirm_is_not_released(cluster: Cluster, answer: tuple[int, str]) -> None:
    p = await cluster.add("prefill")
    told = Confirmed(cluster)
    p.release_answer = answer
    told.calls.start(p.engine_id, ["a"])
    await eventually(lambda: len(p.releases) == 1 and repr(told.calls) == "<DirectReleases 0 under way>")
    p.release_answer = None
    told.calls.start(p.engine_id, ["b"])
    await told.calls.close()
    assert [lease_id for _, lease_id in told.leases] == ["b"]


async def test_a_p_that_does_not_answer_is_not_asked_for_the_rest(cluster: Cluster) -> None:
    p = await cluster.add("prefill")
    told = Confirmed(cluster)
    p.release_answer = (500, "")
    told.calls.start(p.engine_id, [f"l{number}" for number in range(3 * MAX_LEASES)])
    await told.calls.close()
    assert (len(p.releases), told.leases) == (1, [])


async def test_a_p_that_is_gone_is_no_error(cluster: Cluster) -> None:
    p = await cluster.add("prefill")
    told = Confirmed(cluster)
    await p.stop()
    told.calls.start(p.engine_id, ["a"])
    await told.calls.close()
    assert told.leases == []
    told.calls.start(p.engine_id, ["b"])
    assert repr(told.calls) == "<DirectReleases 0 under way>", "nothing begins after the end"


async def test_a_router_s_releases_reach_p(cluster: Cluster) -> None:
    """As a router is built: from the leases' renewal to P, and back."""
    p = await cluster.add("prefill")
    (tell,) = cluster.leases.on_unsent
    tell(p.engine_id, ["a"])
    await eventually(lambda: cluster.leases.released == ["a"])
    assert p.releases == [["a"]]
