"""A vLLM whose leases are in the store: the fence tells D, so its answers are thrown away only where D has none."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pytest

from baton_serve.core.leases.store import LeaseState
from baton_serve.core.protocol.worker import Role
from baton_serve.router.pool.kind import EngineKind
from baton_serve.router.vllm.engine.engine import StoredLeases, VllmEngine
from baton_serve.router.vllm.leases.vllm_leases import VllmLeases
from tests.kits.router.cluster import Cluster, chat
from tests.kits.router.stub_workers import Refuse, Reset
from tests.kits.router.vllm_server import VllmServer, add_vllm, add_vllm_pair, prefilled


class Renewer:
    """Says in turn how long each lease is surely kept, and the last answer again and again."""

    def __init__(self, *remaining_ms: int | None) -> None:
        self._remaining_ms = deque(remaining_ms)
        self.happened: list[str] = []
        self.on_release: Callable[[], None] = lambda: None

    def track(self, engine_id: str, lease_id: str, on_over: Callable[[LeaseState], None]) -> None:
        self.happened.append(f"track {lease_id}")

    def tracks(self, _engine_id: str, lease_id: str) -> bool:
        begun = self.happened.count(f"track {lease_id}")
        return begun > self.happened.count(f"untrack {lease_id}") + self.happened.count(f"release {lease_id}")

    def untrack(self, _engine_id: str, lease_id: str) -> None:
        self.happened.append(f"untrack {lease_id}")

    def release(self, _engine_id: str, lease_id: str) -> None:
        self.happened.append(f"release {lease_id}")
        self.on_release()

    def remaining_ms(self, _engine_id: str, _lease_id: str) -> int | None:
        return self._remaining_ms.popleft() if len(self._remaining_ms) > 1 else self._remaining_ms[0]

    def __len__(self) -> int:
        return 0

    def counters(self) -> Mapping[str, int]:
        return {}


def stored(number: int) -> Refuse:
    """What P answers of a lease in the store."""
    return prefilled(number, lease_id=f"lease-{number}")


async def pair(
    cluster: Cluster, renewer: Renewer, *answers: Refuse, has_fence: bool = True, all_have_fence: bool = True
) -> tuple[VllmServer, VllmServer]:
    engine = VllmEngine(VllmLeases(30), StoredLeases(renewer, lambda: all_have_fence), 1 << 20)
    cluster.use_engines({EngineKind.VLLM: engine})
    p, d = await add_vllm_pair(cluster)
    p.script.extend(answers)
    fence(cluster, has_fence)
    return p, d


def fence(cluster: Cluster, has_fence: bool) -> None:
    """What the side channels of all servers say."""
    for worker in cluster.pool:
        worker.has_fence = has_fence


@pytest.mark.parametrize("remaining_ms", [0, None])
async def test_a_d_with_a_fence_may_read_whatever_became_of_the_lease(
    cluster: Cluster, remaining_ms: int | None
) -> None:
    renewer = Renewer(remaining_ms)
    p, d = await pair(cluster, renewer, stored(0), has_fence=True)
    assert (await cluster.post(chat(stream=True))).status_code == 200
    assert (len(p.bodies), len(d.bodies)) == (1, 1)
    assert renewer.happened == ["track lease-0", "untrack lease-0"]


async def test_a_d_that_has_lost_its_fence_is_not_sent_the_parameters(cluster: Cluster) -> None:
    """It has restarted as a stock server while the request was held: others may have read the blocks."""
    renewer = Renewer(5000)
    p, d = await pair(cluster, renewer, stored(0), stored(1), has_fence=False)
    d_worker = next(worker for worker in cluster.pool if worker.role is Role.DECODE)
    renewer.on_release = lambda: setattr(d_worker, "has_fence", True)
    assert (await cluster.post(chat(stream=True))).status_code == 200
    assert (len(p.bodies), len(d.bodies)) == (2, 1)
    assert renewer.happened == ["track lease-0", "release lease-0", "track lease-1", "untrack lease-1"]


async def test_where_a_d_has_no_fence_leases_are_vllms_own(cluster: Cluster) -> None:
    renewer = Renewer(5000)
    p, d = await pair(cluster, renewer, stored(0), has_fence=False, all_have_fence=False)
    assert (await cluster.post(chat(stream=True))).status_code == 200
    assert (len(p.bodies), len(d.bodies), renewer.happened) == (1, 1, [])


async def test_another_d_reads_the_blocks_of_one_that_broke(cluster: Cluster) -> None:
    renewer = Renewer(5000)
    p, d = await pair(cluster, renewer, stored(0), has_fence=True)
    d.script.append(Reset())  # it is tried first, since the router has known it longest
    other = (await add_vllm(cluster, "decode"))[0]
    fence(cluster, True)
    assert (await cluster.post(chat(stream=True))).status_code == 200
    assert (len(p.bodies), len(d.bodies), len(other.bodies)) == (1, 1, 1)
    assert other.bodies[0]["kv_transfer_params"]["lease_id"] == "lease-0"
    assert renewer.happened == ["track lease-0", "untrack lease-0"]


async def test_a_lease_that_another_request_holds_is_refused(cluster: Cluster) -> None:
    renewer = Renewer(5000)
    renewer.track("e", "lease-0", lambda _: None)
    p, d = await pair(cluster, renewer, stored(0), stored(1), has_fence=True)
    assert (await cluster.post(chat(stream=True))).status_code == 200
    assert (len(p.bodies), len(d.bodies)) == (2, 1)
    params: dict[str, Any] = d.bodies[0]["kv_transfer_params"]
    assert params["lease_id"] == "lease-1"
    assert msgspec.json.decode(msgspec.json.encode(params)) == params
