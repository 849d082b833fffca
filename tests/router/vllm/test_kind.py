"""Which vLLM servers can be a pair, and what a router assumes of them before it knows them."""

from __future__ import annotations

import pytest

from baton_serve.core.protocol.errors import UnavailableError
from baton_serve.core.protocol.worker import WorkerLoad
from baton_serve.router.pool import Worker, WorkerPool
from baton_serve.router.pool.model_card import ModelFacts
from baton_serve.router.queue.lease_limit import LeaseLimit
from baton_serve.router.vllm.kind import VLLM
from tests.kits.router.cluster import Cluster


def vllm_pool(*addresses: str, roles: str = "pd") -> tuple[WorkerPool, list[Worker]]:
    """A P and a D (or what ``roles`` says) that serve the model m from one root."""
    pool = WorkerPool(4, vllm=VLLM)
    workers = pool.add_static(
        [one for one, role in zip(addresses, roles, strict=True) if role in "pb"],
        [one for one, role in zip(addresses, roles, strict=True) if role in "db"],
    )
    for worker in workers:
        pool.learn_models(worker, {"m": ModelFacts(root="/model")})
    return pool, workers


class TestPairsOfVllm:
    @pytest.fixture
    def pair(self) -> tuple[WorkerPool, Worker, Worker]:
        pool, (p, d) = vllm_pool("vllm+http://p", "vllm+http://d")
        return pool, p, d

    def readers(self, pool: WorkerPool) -> tuple[Worker, ...]:
        pool.learned()
        route = pool.route("m")
        return route.readers(route.prefill[0])

    @pytest.mark.parametrize("hashes", [("", ""), ("x", ""), ("", "x"), ("x", "x")])
    def test_pairs_are_made_where_no_difference_is_known(
        self, pair: tuple[WorkerPool, Worker, Worker], hashes: tuple[str, str]
    ) -> None:
        pool, p, d = pair
        p.compatibility_hash, d.compatibility_hash = hashes
        assert self.readers(pool) == (d,)

    @pytest.mark.parametrize(
        ("name", "one", "other", "said"),
        [
            ("compatibility_hash", "x", "y", "hash"),
            ("usage.block_size", 16, 32, "block size: 16 and 32"),
            ("version", "0.32.0", "0.31.1", "version of vLLM: 0.32.0 and 0.31.1"),
            ("facts", {"m": ModelFacts(root="/a")}, {"m": ModelFacts(root="/b")}, "loaded from"),
            ("server.hands_off", True, False, "NixlConnector"),
        ],
    )
    def test_pairs_are_not_made_of_servers_that_differ(
        self, pair: tuple[WorkerPool, Worker, Worker], name: str, one: object, other: object, said: str
    ) -> None:
        pool, p, d = pair
        holder, _, field = name.rpartition(".")
        setattr(getattr(p, holder, p), field, one)
        setattr(getattr(d, holder, d), field, other)
        with pytest.raises(UnavailableError, match=said):
            self.readers(pool)

    def test_pairs_are_not_made_with_workers_of_ours(self) -> None:
        pool, (p, d) = vllm_pool("vllm+http://p", "http://d")
        with pytest.raises(UnavailableError, match="engine: one"):
            pool.route("m")
        p.compatibility_hash = d.compatibility_hash = "x"
        with pytest.raises(UnavailableError, match="engine: one"):
            self.readers(pool)

    def test_an_adapter_goes_by_the_model_that_it_is_for(self, pair: tuple[WorkerPool, Worker, Worker]) -> None:
        pool, p, d = pair
        for worker, folder in ((p, "/lora/p"), (d, "/lora/d")):
            adapter = ModelFacts(root=folder, parent="m")
            pool.learn_models(worker, {"m": ModelFacts(root="/model"), "tuned": adapter})
        assert pool.route("tuned").readers(p) == (d,)
        pool.learn_models(d, {"m": ModelFacts(root="/other"), "tuned": adapter})
        with pytest.raises(UnavailableError, match="loaded from"):
            pool.route("tuned")

    def test_without_a_pair_a_worker_that_does_both_serves_alone(self) -> None:
        pool, workers = vllm_pool("vllm+http://p", "vllm+http://d", "vllm+http://b", roles="pdb")
        for worker, version in zip(workers, ("1", "2", "3"), strict=True):
            worker.version = version
        pool.learned()
        route = pool.route("m")
        assert (route.single, {worker.worker_id for worker in route.decode}) == (True, {"vllm+http://b"})


def test_vllm_servers_without_a_known_hash_continue_for_each_other() -> None:
    """As without NixlConnector, or where the router cannot ask side channels."""
    pool, workers = vllm_pool("vllm+http://a", "vllm+http://b", "vllm+http://c", "http://plain", roles="bbbb")
    for worker, weights in zip(workers, ("w", "w", "other", "w"), strict=True):
        worker.weights_fingerprint = weights
    pool.learned()
    route = pool.route("m").continuing("w")
    assert route is not None
    assert (route.single, route.decode) == (True, tuple(workers[:2]))
    assert pool.route("m").continuing("lost") is None


def test_a_vllm_server_serves_nothing_before_it_has_said_what() -> None:
    pool = WorkerPool(4, vllm=VLLM)
    pool.add_static(["vllm+http://p"], ["vllm+http://d"])
    with pytest.raises(UnavailableError, match="2 have not said"):
        pool.route("m")


async def test_a_vllm_server_does_not_say_what_is_leased() -> None:
    """Then this router's own hand-offs count, also those from before the last report."""
    pool = WorkerPool(4, vllm=VLLM)
    blocks = LeaseLimit(0.5, pool)
    (worker,) = pool.add_static(["vllm+http://x"], [])
    worker.usage.num_blocks, worker.usage.block_size = 10, 16
    blocks.hold("a", worker, 6 * 16)
    for _ in range(2):
        pool.reported(worker, WorkerLoad(pinned_blocks=6), None, 0)
        assert (blocks.count(worker), blocks.allows(worker), blocks.since_report(worker)) == (6, False, 0)
    blocks.end("a")
    assert blocks.allows(worker)


async def test_a_vllm_server_never_gets_the_internal_token(cluster: Cluster) -> None:
    (worker,) = cluster.pool.add_static([], ["vllm+http://127.0.0.1:9"])
    worker.engine_id = "its own"
    assert cluster.legs.headers_for(worker) == ()
