"""Leases by the request that they were granted for."""

from __future__ import annotations

import pytest

from baton_serve.workers.engine.blocks.lease_index import Grant, LeaseIndex
from baton_serve.workers.engine.errors import LedgerError


def granted(**requests: str) -> LeaseIndex:
    """Lease ids and their requests' ids."""
    grants = LeaseIndex()
    for lease_id, request_id in requests.items():
        grants.add(lease_id, Grant(request_id, [1]))
    return grants


def test_the_leases_of_a_request_come_oldest_first_and_leave_in_any_order() -> None:
    grants = granted(l0="aa", l1="ab", l2="aa", l3="aa")
    assert (grants.of("aa"), grants.of("ab"), grants.of("a")) == (["l0", "l2", "l3"], ["l1"], [])
    assert sorted(grants.ending_with("a")) == ["l0", "l2", "l3"]
    for lease_id in ("l2", "l2", "never"):
        grants.remove(lease_id)
        grants.check()
    assert grants.of("aa") == ["l0", "l3"] and "l2" not in grants and grants.get("l2") is None
    for lease_id in ("l3", "l0", "l1"):
        grants.remove(lease_id)
        grants.check()
    assert grants.ending_with("") == []


def test_nothing_stays_of_requests_that_have_no_lease_any_more() -> None:
    grants = granted(l0="a", l1="b")
    grants.remove("l0")
    grants.remove("l1")
    assert not grants._by_request and not grants._by_lease


def test_an_index_that_does_not_fit_is_found() -> None:
    grants = granted(l0="a")
    del grants._by_request["a"]
    with pytest.raises(LedgerError, match="another request"):
        grants.check()
    grants = granted(l0="a")
    grants._by_request["b"] = {}
    with pytest.raises(LedgerError, match="without leases"):
        grants.check()
