"""The policy that goes by load, and which workers any policy may choose from."""

from __future__ import annotations

from baton_serve.core.protocol.worker import WorkerLoad
from baton_serve.router.placement import Prompt, available
from baton_serve.router.placement.policies.least_loaded import LeastLoaded
from tests.kits.router.workers import new_worker as worker

PROMPT = Prompt("m", 1)


def test_the_worker_with_the_least_share_of_load_is_taken_and_equals_in_turns() -> None:
    small, large = worker("s", limit=2), worker("l", limit=8)
    small.usage.in_flight, large.usage.in_flight = 1, 3
    policy = LeastLoaded()
    assert policy.pick([small, large], PROMPT) is large
    small.usage.in_flight = large.usage.in_flight = 0
    assert {policy.pick([small, large], PROMPT).worker_id for _ in range(4)} == {"s", "l"}


def test_full_ill_leaving_and_failed_workers_are_not_available() -> None:
    full, ill, leaving, good, failed = (worker(name) for name in ("full", "ill", "leaving", "good", "failed"))
    full.usage.in_flight, ill.standing.healthy, leaving.usage.load = 4, False, WorkerLoad(draining=True)
    everybody = [full, ill, leaving, good, failed]
    assert available(everybody, {failed}) == [good]
    assert available([failed], {failed}) == [failed], "nobody else is left"
    assert available([full, failed], {failed}) == [], "somebody else will have room"
