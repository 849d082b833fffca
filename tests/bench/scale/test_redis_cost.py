"""What calls cost a Redis: the shares that follow, and that a real one is measured."""

from __future__ import annotations

import pytest

from bench.scale.redis_cost import RedisCosts, measure

COSTS = RedisCosts(renew_us=30, renew_lease_us=5, grant_us=40, done_us=60, announce_us=20, deliver_us=2)


def test_there_is_one_renewal_for_each_pair_that_holds_leases() -> None:
    assert COSTS.renewals(300, 1000, 1.5) == pytest.approx((200 * 30 + 200 * 5) / 1e6)
    assert COSTS.renewals(3000, 15, 1.5) == pytest.approx((10 * 30 + 2000 * 5) / 1e6)


def test_requests_and_announcements_cost_what_each_does() -> None:
    assert COSTS.requests(1000) == pytest.approx(0.1)
    assert COSTS.announcements(100, 10, 4.0) == pytest.approx(400 * 40 / 1e6)


def test_a_real_redis_takes_time_for_each_call() -> None:
    costs = measure()
    assert min(costs.renew_us, costs.grant_us, costs.done_us, costs.announce_us) > 0
