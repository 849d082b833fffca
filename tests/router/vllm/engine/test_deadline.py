"""An answer of D that was made of blocks that P may have given up is never the client's."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from baton_serve.core.net.client import http_client
from baton_serve.core.net.client.http_client import HttpClient
from baton_serve.router.pool.kind import EngineKind
from baton_serve.router.pool.view import view_worker
from baton_serve.router.vllm.engine.engine import VllmEngine
from baton_serve.router.vllm.leases.remote_engine import RemoteEngine
from tests.kits.router.cluster import Cluster, chat, eventually
from tests.kits.router.stub_workers import KEEP_ALIVE, Raw, Reset
from tests.kits.router.vllm_server import VllmServer, add_vllm, add_vllm_pair, prefilled


class ScriptedLease:
    """Says in turn for how long P surely keeps the blocks."""

    engine_id = "e"

    def __init__(self, lease_id: str, remaining_ms: list[int]) -> None:
        self.lease_id = lease_id
        self._remaining_ms = deque(remaining_ms)
        self.happened: list[str] = []

    def remaining_ms(self) -> int | None:
        return self._remaining_ms.popleft()

    def ends(self) -> None:
        self._remaining_ms = deque([0, 0])

    def given(self) -> None:
        self.happened.append("given")

    def confirmed(self) -> bool:
        self.happened.append("confirmed")
        return True

    def release(self) -> bool:
        self.happened.append("release")
        return True


class ScriptedLeases:
    """One lease for each answer of P."""

    def __init__(self, *remaining_ms: list[int]) -> None:
        self._script = deque(remaining_ms)
        self.leases: list[ScriptedLease] = []
        #: Its clock shows how many prompts P has been sent.
        self.now_ms: Callable[[], int] = lambda: 0
        self.asked_ms: list[int] = []

    def tracks(self, _engine_id: str, _lease_id: str) -> bool:
        return False

    def hold(self, _where: RemoteEngine, lease_id: str, _on_over: Any, *, asked_ms: int) -> ScriptedLease:
        self.asked_ms.append(asked_ms)
        self.leases.append(ScriptedLease(lease_id, self._script.popleft()))
        return self.leases[-1]


async def pair(cluster: Cluster, leases: ScriptedLeases, num_prefills: int) -> tuple[VllmServer, VllmServer]:
    engine = VllmEngine(leases, None, 1 << 20)  # type: ignore[arg-type]
    cluster.use_engines({EngineKind.VLLM: engine})
    p, d = await add_vllm_pair(cluster)
    p.script.extend(map(prefilled, range(num_prefills)))
    leases.now_ms = lambda: len(p.bodies)
    return p, d


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_began_in_time_is_the_clients(cluster: Cluster, stream: bool) -> None:
    leases = ScriptedLeases([5000, 4000])
    p, d = await pair(cluster, leases, 1)
    assert (await cluster.post(chat(stream=stream))).status_code == 200
    assert (len(p.bodies), len(d.bodies)) == (1, 1)
    assert leases.leases[0].happened == ["given", "confirmed"]


async def test_an_answer_that_began_too_late_is_thrown_away(cluster: Cluster) -> None:
    leases = ScriptedLeases([5000, 0], [5000, 4000])
    p, d = await pair(cluster, leases, 2)
    assert (await cluster.post(chat(stream=True))).status_code == 200
    assert (len(p.bodies), len(d.bodies)) == (2, 2)
    assert [lease.happened for lease in leases.leases] == [["given", "release"], ["given", "confirmed"]]
    assert leases.asked_ms == [0, 1], "each counts from when P was asked for it"
    assert d.bodies[1]["kv_transfer_params"]["remote_request_id"] == "chatcmpl-1"


@pytest.mark.parametrize("mixed", [False, True])
async def test_a_comment_of_a_d_that_has_not_read_is_no_answer(cluster: Cluster, mixed: bool) -> None:
    """A vLLM server sends comments while a request is queued. ``mixed``: a worker of Baton's serves the model too."""
    leases = ScriptedLeases([5000, 4000], [5000, 4000])
    _, d = await pair(cluster, leases, 2)
    if mixed:
        ours = await cluster.add("decode")
        cluster.pool.leave_out(next(one for one in cluster.pool if one.url == ours.url))
    waiting = Raw([KEEP_ALIVE, KEEP_ALIVE, None, b'data: {"choices":[{"delta":{"content":"of others"}}]}\n\n'])
    d.script.append(waiting)
    asking = asyncio.create_task(cluster.post(chat(stream=True)))
    await eventually(lambda: bool(d.bodies) and leases.leases[0].happened == ["given"])
    await asyncio.sleep(0.1)
    leases.leases[0].ends()
    waiting.go.set()
    assert "of others" not in (await asking).text
    assert [lease.happened for lease in leases.leases] == [["given", "release"], ["given", "confirmed"]]


@pytest.mark.settings(first_byte_timeout_s=0.3, token_timeout_s=0.4)
@pytest.mark.parametrize("num_events", [0, 3])
async def test_a_d_that_sends_only_comments_is_left(cluster: Cluster, num_events: int) -> None:
    """They are no sign that a vLLM server computes: its engine may hang."""
    server, _ = await add_vllm(cluster, "both")
    event = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":"x"}}]}\n\n'
    hanging = Raw([event] * num_events, then="ping")
    server.script.extend([hanging] * 9)
    answer = await asyncio.wait_for(cluster.post(chat(stream=True)), 10)
    assert answer.text.count('"content":"x"') == num_events
    assert "timeout" in answer.text or "in time" in answer.text, answer.text
    await eventually(lambda: server.num_disconnects == len(server.bodies))
    cluster.check_idle()


async def test_an_unstreamed_answer_that_came_too_late_is_then_computed_by_d_alone(cluster: Cluster) -> None:
    """It begins when it is complete, and would come too late again and again if the lease cannot be renewed."""
    leases = ScriptedLeases([5000, 0])
    p, d = await pair(cluster, leases, 1)
    assert (await cluster.post(chat(stream=False))).status_code == 200
    assert (len(p.bodies), len(d.bodies)) == (1, 2)
    assert [lease.happened for lease in leases.leases] == [["given", "release"]]
    assert "kv_transfer_params" not in d.bodies[1]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("blocks", [([3, 4], [0, 5]), ([0, 7, 8],)])
async def test_a_prompt_of_which_p_has_given_up_a_block_is_computed_by_d_alone(
    cluster: Cluster, blocks: tuple[list[int], ...], stream: bool
) -> None:
    """vLLM gives up a block of a sliding window that D needs, and its null block is in the place."""
    leases = ScriptedLeases([5000], [5000, 4000])
    p, d = await pair(cluster, leases, 0)
    p.script.extend([prefilled(0, remote_block_ids=blocks), prefilled(1)])
    assert (await cluster.post(chat(stream=stream))).status_code == 200
    assert (len(p.bodies), len(d.bodies)) == (1, 1)
    assert "kv_transfer_params" not in d.bodies[0]
    assert leases.leases[0].happened == ["release"]
    shown = {worker.role: view_worker(worker).unreadable_hand_offs for worker in cluster.pool}
    assert shown == {"prefill": 1, "decode": 0}
    assert (await cluster.post(chat(stream=stream))).status_code == 200
    assert d.bodies[1]["kv_transfer_params"]["remote_request_id"] == "chatcmpl-1"


@pytest.mark.parametrize("end", ["restart", "leave"])
async def test_a_held_request_is_told_that_the_rank_with_its_blocks_is_gone(cluster: Cluster, end: str) -> None:
    """A server with data-parallel ranks names the first of its engines, and hands over blocks of any."""
    leases = ScriptedLeases([5000, 4000], [5000, 4000])
    p, d = await pair(cluster, leases, 0)
    other, _ = await add_vllm(cluster, "prefill")
    pool = cluster.pool
    source, reader, spare = pool
    source.engine_id, source.server.num_engines, reader.usage.limit, spare.usage.limit = "old_dp0", 2, 0, 0
    p.script.extend([prefilled(0, remote_engine_id="old_dp1"), prefilled(1)])
    other.script.append(prefilled(1))
    asking = asyncio.create_task(cluster.post(chat()))
    await eventually(lambda: bool(leases.leases))
    spare.usage.limit = 1
    if end == "restart":
        pool.engine_started(source, "new_dp0")
    else:
        pool.remove_static(source)
    await eventually(lambda: len(leases.leases) == 2)
    assert leases.leases[0].happened == ["release"]
    reader.usage.limit = 1
    pool.learned()
    assert (await asking).status_code == 200
    assert d.bodies[0]["kv_transfer_params"]["remote_request_id"] == "chatcmpl-1"


async def test_no_d_is_given_parameters_after_the_deadline(cluster: Cluster) -> None:
    leases = ScriptedLeases([0], [5000, 4000])
    p, d = await pair(cluster, leases, 2)
    assert (await cluster.post(chat())).status_code == 200
    assert (len(p.bodies), len(d.bodies)) == (2, 1)
    assert leases.leases[0].happened == ["release"]


@pytest.mark.interpreted
async def test_a_lease_that_ends_while_the_router_connects_to_d_is_not_given(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    leases = ScriptedLeases([5000, 4000], [5000, 4000])
    _, d = await pair(cluster, leases, 2)
    connect = HttpClient._connect

    async def slowly_to_d(client: HttpClient, origin: Any) -> Any:
        made = await connect(client, origin)
        if origin.port == d.port and len(leases.leases) == 1:
            leases.leases[0].ends()
        return made

    monkeypatch.setattr(HttpClient, "_connect", slowly_to_d)
    assert (await cluster.post(chat())).status_code == 200
    assert [body["kv_transfer_params"]["remote_request_id"] for body in d.bodies] == ["chatcmpl-1"]
    assert leases.leases[0].happened == ["release"]


async def test_parameters_are_sent_once_although_a_kept_connection_breaks(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_client, "STALE_S", 60.0)
    leases = ScriptedLeases([5000, 4000], [5000], [5000, 4000])
    _, d = await pair(cluster, leases, 3)
    assert (await cluster.post(chat())).status_code == 200
    d.script.append(Reset())
    assert (await cluster.post(chat())).status_code == 200
    given = [body["kv_transfer_params"]["remote_request_id"] for body in d.bodies]
    assert given == ["chatcmpl-0", "chatcmpl-1", "chatcmpl-2"]


@pytest.mark.interpreted
async def test_a_client_that_leaves_before_d_is_connected_has_its_blocks_freed(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    leases = ScriptedLeases([])
    _, d = await pair(cluster, leases, 1)
    connect, connecting = HttpClient._connect, asyncio.Event()

    async def to_all_but_d(client: HttpClient, origin: Any) -> Any:
        if origin.port == d.port:
            connecting.set()
            await asyncio.Event().wait()
        return await connect(client, origin)

    monkeypatch.setattr(HttpClient, "_connect", to_all_but_d)
    client = await cluster.open(chat())
    await connecting.wait()
    client.close()
    await eventually(lambda: leases.leases[0].happened == ["release"])


async def test_a_d_that_refuses_the_connection_was_given_nothing(cluster: Cluster) -> None:
    leases = ScriptedLeases([5000, 4000], [5000, 4000])
    p, d1 = await pair(cluster, leases, 1)
    d2 = (await add_vllm(cluster, "decode"))[0]
    await d1.stop()
    assert (await cluster.post(chat())).status_code == 200
    assert cluster.metrics.retries["decode"] == 1, "the one that the router has known longest was tried first"
    assert (len(p.bodies), len(d2.bodies), leases.leases[0].happened) == (1, 1, ["given", "confirmed"])


async def test_a_client_that_leaves_after_a_refusal_has_its_blocks_freed(cluster: Cluster) -> None:
    """No other D has room, so the request is held again."""
    leases = ScriptedLeases([5000])
    _, d = await pair(cluster, leases, 1)
    await d.stop()
    client = await cluster.open(chat())
    await eventually(lambda: cluster.metrics.retries["decode"] == 1)
    client.close()
    await eventually(lambda: leases.leases[0].happened == ["release"])
