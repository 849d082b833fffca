"""A whole simulated cluster: routers, P and D, the registry between them, a load, and what goes wrong."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from baton_serve.router.pool.pool import LOAD_TTL_S
from baton_serve.router.settings import RouterSettings
from bench.scale.clock import SimulatedLoop
from bench.scale.cluster.engines.decode import DecodeEngine
from bench.scale.cluster.engines.machine import Size
from bench.scale.cluster.engines.prefill import PrefillEngine
from bench.scale.cluster.leases import Leases
from bench.scale.cluster.outcome import Outcome
from bench.scale.cluster.router.decisions import Decisions
from bench.scale.cluster.router.router import SimulatedRouter
from bench.scale.costs import Costs
from bench.scale.load.job import Job


@dataclass(frozen=True)
class Plan:
    """What a cluster is made of.

    ``slow_share`` of all D have ``slow_speed``. ``cleans_up``: when a
    router dies, another one ends its leases.
    """

    num_p: int
    num_d: int
    num_routers: int = 2
    p: Size = field(default_factory=lambda: Size(num_blocks=65_536, max_num_seqs=8))
    d: Size = field(default_factory=lambda: Size(num_blocks=65_536, max_num_seqs=32))
    slow_share: float = 0.0
    slow_speed: float = 0.5
    pick_prefill: Literal["least_loaded", "round_robin", "two_choices", "prefix"] = "prefix"
    pick_decode: Literal["least_loaded", "round_robin", "two_choices", "affinity"] = "affinity"
    chooses_early: bool = False
    lease_ms: int = 6000
    cleans_up: bool = True


class Cluster:
    """Routers and workers on one clock. ``run`` offers a load and returns when the last request has ended."""

    def __init__(self, plan: Plan, costs: Costs, seed: int) -> None:
        self.loop = loop = SimulatedLoop()
        self.plan = plan
        self.costs = costs
        self.outcome = Outcome()
        self._random = random.Random(seed)
        settings = RouterSettings.model_construct(pick_prefill=plan.pick_prefill, pick_decode=plan.pick_decode)
        self.leases = Leases(loop, plan.lease_ms, cleans_up=plan.cleans_up)
        self.p = [PrefillEngine(f"p{number}", plan.p, loop, costs) for number in range(plan.num_p)]
        self.d = [DecodeEngine(f"d{number}", self._d_size(number), loop, costs) for number in range(plan.num_d)]
        self._all: list[PrefillEngine | DecodeEngine] = [*self.p, *self.d]
        #: By engine id, dead ones included: a router may still ask one.
        self.machines = {machine.engine_id: machine for machine in self._all}
        #: The registry: when each dead engine is taken off its list.
        self._gone_at_s: dict[PrefillEngine | DecodeEngine, float] = {}
        self.routers = [
            SimulatedRouter(
                f"r{number}",
                loop,
                Decisions(loop, settings, seed + number),
                self.leases,
                self.machines,
                costs,
                self.outcome,
                chooses_early=plan.chooses_early,
            )
            for number in range(plan.num_routers)
        ]
        #: Blocks under leases that nobody wants any more, times seconds.
        self.stranded_block_s = 0.0
        self._num_come = 0
        self._has_all_come = False

    def run(self, jobs: Iterable[Job]) -> Outcome:
        """Offer the requests, which are in the order of their times, until all have ended."""
        with self.loop:
            self.report()
            self._next(iter(jobs))
            self.loop.run()
        return self.outcome

    def kill(self, machine: PrefillEngine | DecodeEngine) -> None:
        """End an engine now; another one runs in its place after a while."""
        if not machine.is_alive:
            return
        engine_id, lost = machine.engine_id, machine.die()
        if isinstance(machine, PrefillEngine):
            self.leases.engine_died(machine.kept)
        for request, leg, router in lost:
            self.loop.call_later(self.costs.notice_s, router.lost, request, leg, engine_id)
        self._gone_at_s[machine] = self.loop.now_s + LOAD_TTL_S
        self.loop.call_later(max(self.costs.restart_s, LOAD_TTL_S), self._start, machine)

    def kill_router(self, router: SimulatedRouter) -> None:
        """End a router now. None takes its place."""
        if router.is_alive and sum(one.is_alive for one in self.routers) > 1:
            router.die()
            for machine in self.d:
                if machine.is_alive:
                    machine.drop(router)

    def _start(self, machine: PrefillEngine | DecodeEngine) -> None:
        self.machines.pop(machine.engine_id, None)
        self._gone_at_s.pop(machine, None)
        machine.start()
        self.machines[machine.engine_id] = machine

    def _d_size(self, number: int) -> Size:
        size = self.plan.d
        is_slow = (number + 1) * self.plan.slow_share % 1 < self.plan.slow_share - 1e-9
        return Size(size.num_blocks, size.max_num_seqs, self.plan.slow_speed) if is_slow else size

    def _next(self, jobs: Iterator[Job]) -> None:
        job = next(jobs, None)
        if job is None:
            self._has_all_come = True
            return
        self.loop.call_at(job.came_s, self._come, job, jobs)

    def _come(self, job: Job, jobs: Iterator[Job]) -> None:
        self._num_come += 1
        alive = [router for router in self.routers if router.is_alive]
        alive[self._num_come % len(alive)].come(job, self._num_come)
        self._next(jobs)

    def report(self) -> None:
        """All workers report, and every router takes the list."""
        now_s = self.loop.now_s
        statuses = [
            machine.status() for machine in self._all if machine.is_alive or self._gone_at_s.get(machine, now_s) > now_s
        ]
        for router in self.routers:
            if router.is_alive:
                router.decides.pool.apply(statuses)
        self._share_tokens()
        num_leased = self._count_leased()
        if self._has_all_come and not self.outcome.num_live and not num_leased:
            self.loop.is_over = True
        else:
            self.loop.call_later(self.costs.report_interval_s, self.report)

    def _count_leased(self) -> int:
        """Add up the blocks under leases; returns how many there are now."""
        num_leased = sum(engine.kept.num_blocks for engine in self.p)
        for engine in self.p:
            stranded = sum(num for key, num in engine.kept.leased.items() if not self.leases.is_wanted(key))
            self.stranded_block_s += stranded * self.costs.report_interval_s
        return num_leased

    def _share_tokens(self) -> None:
        """Tell each router how much of its core tokens and reports take now."""
        tokens = sum(machine.num_running / machine.step_s() for machine in self.d if machine.num_running)
        alive = [router for router in self.routers if router.is_alive]
        reports = self.costs.reports_share(len(self._all))
        for router in alive:
            router.cpu.share = tokens / len(alive) * self.costs.router_token_s + reports
