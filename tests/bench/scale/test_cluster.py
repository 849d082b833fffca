"""A simulated cluster: it loses nothing, says the same twice, and agrees with what theory says of a small one."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from statistics import mean

import pytest

from bench.scale.cluster.cluster import Cluster, Plan
from bench.scale.cluster.engines.machine import Size
from bench.scale.cluster.outcome import Outcome
from bench.scale.cluster.request import End
from bench.scale.costs import Costs
from bench.scale.faults import kill_routers, kill_workers, pause_renewals
from bench.scale.load.generated import Shape, generate
from bench.scale.load.job import Job

FREE = replace(Costs(), router_request_s=0.0, router_report_s=0.0, router_token_s=0.0)


def load(seed: int, rate: float = 80.0, seconds: float = 6.0) -> list[Job]:
    return list(generate(Shape(rate, seconds), random.Random(seed)))


def assert_nothing_is_left(cluster: Cluster, num_jobs: int) -> None:
    outcome = cluster.outcome
    assert sum(outcome.ends.values()) == outcome.num_come == num_jobs
    assert [engine.kept.num_blocks for engine in cluster.p] == [0] * len(cluster.p)
    assert [engine.num_used for engine in cluster.d] == [0] * len(cluster.d)
    for router in cluster.routers:
        if router.is_alive:
            assert not router.decides.active
            assert len(router.decides.lease_limit) == len(router.decides.queues.held) == 0
            assert all(worker.usage.in_flight == worker.usage.held_blocks == 0 for worker in router.decides.pool)


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("lease_ms", [1000, 6000])
def test_every_request_ends_once_and_every_block_comes_back_whatever_dies(early: bool, lease_ms: int) -> None:
    plan = Plan(6, 5, 3, slow_share=0.4, chooses_early=early, lease_ms=lease_ms)
    cluster = Cluster(plan, Costs(), 1)
    kill_workers(cluster, 3, 3, 6.0, 1)
    kill_routers(cluster, 2, 6.0, 1)
    pause_renewals(cluster, 1.0, 2.0, 6.0, 1)
    jobs = load(1)
    cluster.run(jobs)
    assert_nothing_is_left(cluster, len(jobs))
    ends = cluster.outcome.ends
    assert min(ends[End.ROUTER_DIED], ends[End.DONE]) > 0.2 * len(jobs)
    assert cluster.outcome.num_migrated > 0


def test_a_load_beyond_every_queue_is_refused_and_loses_nothing() -> None:
    plan = Plan(1, 1, 1, p=Size(4096, 2), d=Size(4096, 4))
    jobs = load(2, rate=2500.0, seconds=2.5)
    cluster = Cluster(plan, FREE, 1)
    cluster.run(jobs)
    assert_nothing_is_left(cluster, len(jobs))
    assert cluster.outcome.ends[End.REFUSED] > 0
    assert cluster.outcome.ends[End.NO_ROOM] > 0


def test_the_same_seed_gives_the_same_outcome_and_another_one_another() -> None:
    def outcome(seed: int) -> Outcome:
        cluster = Cluster(Plan(3, 3, pick_prefill="two_choices", pick_decode="two_choices"), Costs(), seed)
        kill_workers(cluster, 1, 1, 6.0, seed)
        return cluster.run(load(7))

    assert outcome(1) == outcome(1)
    assert outcome(1) != outcome(2)


def test_leases_that_are_renewed_in_time_do_not_lapse_and_those_of_a_dead_router_do() -> None:
    plan = Plan(6, 2, 2, lease_ms=1000, cleans_up=False)
    steady = Cluster(plan, FREE, 1)
    steady.run(load(3))
    assert steady.leases.num_lost == 0
    assert steady.leases.num_renewals > 0
    assert steady.stranded_block_s == 0
    struck = Cluster(plan, FREE, 1)
    kill_routers(struck, 1, 6.0, 1)
    struck.run(load(3))
    assert struck.stranded_block_s > 0


def test_waiting_for_p_is_that_of_a_queue_with_one_server_and_equal_jobs() -> None:
    """M/D/1: the mean wait is ``share * service / (2 * (1 - share))``."""
    service_s, share = 0.1, 0.7
    num_tokens = round(service_s / FREE.prefill_token_s)
    rng, jobs, now_s = random.Random(5), [], 0.0
    for number in range(20_000):
        now_s += rng.expovariate(share / service_s)
        jobs.append(Job(now_s, num_tokens, 1, (2 * number, 2 * number + 1)))
    plan = Plan(1, 1, 1, pick_prefill="least_loaded", pick_decode="least_loaded")
    outcome = Cluster(plan, replace(FREE, report_interval_s=5.0), 1).run(jobs)
    assert outcome.ends == Counter({End.DONE: len(jobs)})
    wait_s = mean(outcome.first_s) - service_s
    assert wait_s == pytest.approx(share * service_s / (2 * (1 - share)), rel=0.1)


def test_sequences_of_one_d_share_its_steps() -> None:
    """Two sequences of 100 and 200 tokens: both together until the first ends, then the other one alone."""
    cluster = Cluster(Plan(2, 1, 1, pick_prefill="round_robin"), FREE, 1)
    outcome = cluster.run([Job(0.0, 512, 101, (1,)), Job(0.0, 512, 201, (2,))])
    begin_s = FREE.prefill_s(512) + FREE.read_s(512)
    end_s = begin_s + 100 * FREE.decode_s(2) + 100 * FREE.decode_s(1)
    assert outcome.ends[End.DONE] == 2
    assert outcome.last_end_s == pytest.approx(end_s, rel=1e-6)


def test_a_request_cannot_end_twice() -> None:
    cluster = Cluster(Plan(1, 1), Costs(), 1)
    request = cluster.routers[0].new_request(Job(0.0, 1, 1, (1,)), 1)
    outcome = Outcome()
    outcome.ended(request, End.DONE, 1.0)
    with pytest.raises(RuntimeError, match="again"):
        outcome.ended(request, End.FAILED, 2.0)
