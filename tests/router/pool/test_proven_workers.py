"""Between the registry and the pool: who has proven that it knows the internal token, over real HTTP."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from functools import partial

import msgspec
import pytest

from baton_serve.core.net.client.http_client import HttpClient
from baton_serve.core.protocol.hello import NONCE, WorkerIdentity, new_nonce, worker_proof
from baton_serve.core.protocol.token_keys import hello_key
from baton_serve.core.protocol.worker import WorkerStatus
from baton_serve.router.pool import proven_workers
from baton_serve.router.pool.health import HealthProbes
from baton_serve.router.pool.proven_workers import ProvenWorkers
from baton_serve.router.upstream.internal_calls import WorkerHello
from tests.kits.router.cluster import Cluster, eventually
from tests.kits.router.stub_workers import StubWorker

TOKEN = "s3cret-internal"
KEY = hello_key(TOKEN)


class Known:
    """What the pool was told last."""

    def __init__(self) -> None:
        self.ids: list[str] = []

    def apply(self, entries: Iterable[WorkerStatus], /) -> None:
        self.ids = [status.record.worker_id for status in entries]


class Desk:
    """Workers that announce themselves, and who of them is known."""

    def __init__(self, cluster: Cluster, upstream: HttpClient, *, token: bool = True) -> None:
        self.known = Known()
        self.outcomes: Counter[str] = Counter()
        self.workers = ProvenWorkers(self.known, WorkerHello(upstream, KEY) if token else None, self.outcomes)
        self._cluster = cluster

    async def add(self, name: str, *, knows_token: bool = True) -> StubWorker:
        worker = await StubWorker("decode", name=name).start()
        self._cluster.workers.append(worker)
        self._cluster.limits[name], self._cluster.hashes[name] = 4, "hash"
        if knows_token:
            self.teach(worker)
        return worker

    def teach(self, worker: StubWorker) -> None:
        worker.prove = partial(worker_proof, KEY, self.status(worker).record)

    def status(self, worker: StubWorker) -> WorkerStatus:
        return self._cluster._status(worker)

    def announce(self, *workers: StubWorker) -> None:
        self.workers.apply([self.status(worker) for worker in workers])


pytestmark = pytest.mark.settings(internal_token=TOKEN)


@pytest.fixture
async def desk(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Desk]:
    monkeypatch.setattr(proven_workers, "FIRST_RETRY_S", 0.005)
    monkeypatch.setattr(proven_workers, "MAX_RETRY_S", 0.01)
    upstream = HttpClient(2.0)
    made = Desk(cluster, upstream)
    yield made
    await made.workers.close()
    await upstream.close()


async def test_only_a_worker_that_has_proven_itself_is_known(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    ours, other = await desk.add("ours"), await desk.add("other", knows_token=False)
    with caplog.at_level(logging.WARNING):
        desk.announce(ours, other)
        assert desk.known.ids == [] and not desk.workers.met.is_set()
        await desk.workers.met.wait()
        await eventually(lambda: other.num_proofs > 3)
        assert desk.known.ids == ["ours"]
    (line,) = [record.getMessage() for record in caplog.records]
    assert line == f"worker other at {other.url} is not used: it did not prove that it knows the internal token"
    desk.teach(other)
    await eventually(lambda: desk.known.ids == ["ours", "other"])
    desk.announce(ours, other)
    assert (desk.known.ids, ours.num_proofs) == (["ours", "other"], 1), "its load changes, it is not asked again"
    desk.announce(other)
    assert desk.known.ids == ["other"]
    desk.announce(ours, other)
    assert desk.known.ids == ["other"], "who was gone has to prove it again"
    await eventually(lambda: desk.known.ids == ["ours", "other"])
    assert desk.outcomes["proven"] == 3 and desk.outcomes["wrong"] >= 3


async def test_a_worker_that_does_not_answer_is_not_known_until_it_does(desk: Desk, free_port: int) -> None:
    worker = await desk.add("late")
    await worker.stop()
    desk.announce(worker)
    await desk.workers.met.wait()
    assert desk.known.ids == [] and desk.outcomes["none"] >= 1
    await worker.start(worker.port)
    await eventually(lambda: desk.known.ids == ["late"])


@pytest.mark.parametrize("field", ["worker_id", "engine_id", "url", "internal_url"])
async def test_a_proof_passed_on_from_another_worker_proves_nothing(desk: Desk, field: str) -> None:
    worker = await desk.add("relay", knows_token=False)
    real = msgspec.structs.replace(desk.status(worker).record, **{field: "http://127.0.0.1:1"})
    worker.prove = partial(worker_proof, KEY, real)
    desk.announce(worker)
    await eventually(lambda: worker.num_proofs > 1)
    assert desk.known.ids == []


async def test_an_answer_heard_before_proves_nothing(desk: Desk) -> None:
    worker = await desk.add("parrot", knows_token=False)
    heard = worker_proof(KEY, desk.status(worker).record, new_nonce())
    worker.prove = lambda _: heard
    desk.announce(worker)
    await eventually(lambda: worker.num_proofs > 1)
    assert desk.known.ids == []
    assert NONCE.fullmatch(new_nonce()) and new_nonce() != new_nonce()


async def test_a_bug_in_asking_a_worker_does_not_leave_it_out_for_ever(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    worker = await desk.add("odd")
    proves, num_bugs = WorkerHello.proves, iter(range(2))

    async def meets_a_bug(hello: WorkerHello, record: WorkerIdentity) -> bool:
        if next(num_bugs, None) is not None:
            raise ValueError("unforeseen")
        return await proves(hello, record)

    monkeypatch.setattr(WorkerHello, "proves", meets_a_bug)
    desk.announce(worker)
    await desk.workers.met.wait()
    await eventually(lambda: desk.known.ids == ["odd"])
    assert desk.outcomes == {"none": 2, "proven": 1} and "ValueError('unforeseen')" in caplog.text


async def test_a_bug_in_whoever_is_told_does_not_leave_a_worker_out_for_ever(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    worker = await desk.add("odd", knows_token=False)
    desk.announce(worker)
    with monkeypatch.context() as broken:
        broken.setattr(desk.known, "apply", lambda _: 1 / 0)
        await eventually(lambda: not desk.workers._asking)
    assert "asking worker odd for its proof met a bug" in caplog.text
    desk.teach(worker)
    desk.announce(worker)
    await eventually(lambda: desk.known.ids == ["odd"])


async def test_without_a_token_everybody_is_known_at_once(cluster: Cluster) -> None:
    desk = Desk(cluster, HttpClient(2.0), token=False)
    desk.announce(await desk.add("a", knows_token=False))
    assert desk.known.ids == ["a"] and desk.workers.met.is_set()


async def test_a_worker_that_could_not_be_reached_proves_itself_again_before_its_use(cluster: Cluster) -> None:
    """Its port may be somebody else's by now."""
    await cluster.probes.close()
    cluster.pool.on_unreachable.clear()
    probes = HealthProbes(cluster.upstream, cluster.pool, WorkerHello(cluster.upstream, KEY))
    stub = await cluster.add("decode")
    (worker,) = cluster.pool
    cluster.pool.unreachable(worker)
    await eventually(lambda: stub.num_health > 1 and stub.num_proofs > 1)
    assert not worker.standing.healthy, "it answers /health, as anybody can"
    stub.prove = partial(worker_proof, KEY, worker)
    await eventually(lambda: worker.standing.healthy)
    await probes.close()
