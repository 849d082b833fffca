"""What decides in a simulated router: the parts of the real one, put together as ``router.build`` does."""

from __future__ import annotations

import random
from typing import cast

from baton_serve.router.placement import DECODE_POLICIES, PREFILL_POLICIES, PickDecode, PickPrefill
from baton_serve.router.placement.policies.two_choices import TwoChoices
from baton_serve.router.pool import WorkerPool
from baton_serve.router.queue.lease_limit import LeaseLimit
from baton_serve.router.queue.queues import Queues
from baton_serve.router.queue.retry_budget import RetryBudget
from baton_serve.router.request.active import ActiveRequests
from baton_serve.router.request.attempts import Attempts, Limits
from baton_serve.router.settings import RouterSettings
from baton_serve.router.steps.admission import Admission
from baton_serve.router.telemetry.metrics.metrics import Metrics
from bench.scale.clock import SimulatedLoop
from bench.scale.cluster.request import Request


class LiveRequests(dict[int, "Request"]):
    """The requests that have come and have not ended, by their numbers. Each is for one answer."""

    @property
    def num_choices(self) -> int:
        """The number of answers that they are for."""
        return len(self)


class Decisions:
    """``seed``: of the policies that choose at random."""

    def __init__(self, loop: SimulatedLoop, settings: RouterSettings, seed: int) -> None:
        self.settings = settings
        self.pool = pool = WorkerPool(settings.default_max_in_flight, clock=loop.time)
        self.queues = Queues(pool.leave)
        self.lease_limit = LeaseLimit(settings.max_leased_fraction, pool)
        self.pick_prefill: PickPrefill = PREFILL_POLICIES[settings.pick_prefill](pool.on_gone)
        self.pick_decode: PickDecode = DECODE_POLICIES[settings.pick_decode](pool.on_gone)
        if settings.pick_prefill == "two_choices":
            self.pick_prefill = TwoChoices(random.Random(seed))
        if settings.pick_decode == "two_choices":
            self.pick_decode = TwoChoices(random.Random(seed + 1))
        self.limits = Limits(
            settings.max_prefill_attempts,
            settings.max_decode_attempts,
            settings.max_resumes,
            settings.max_worker_deaths,
        )
        self.retry_budget = RetryBudget(settings.retry_budget_fraction, settings.retry_budget_floor_per_s)
        self.metrics = Metrics()
        self.active = LiveRequests()
        self.admission = Admission(settings, cast("ActiveRequests", self.active), self.queues, self.metrics)
        pool.on_room += [self.queues.held.wake, self.queues.prefill.wake]

    def attempts(self, now_s: float) -> Attempts:
        """For a new request, which is counted."""
        self.retry_budget.request(now_s)
        return Attempts(self.limits, self.retry_budget)
