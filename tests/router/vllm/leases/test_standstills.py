"""How old what is read may be, after the router itself stood still."""

from __future__ import annotations

from baton_serve.router.vllm.leases.remote_engine import RemoteEngine
from baton_serve.router.vllm.leases.standstills import GAP_MS, READ_MS, TICK_MS, Standstills
from baton_serve.router.vllm.leases.vllm_leases import VllmLeases


def ticking(until_ms: int, standstills: Standstills | None = None, from_ms: int = 0) -> Standstills:
    made = standstills or Standstills()
    for now_ms in range(from_ms, until_ms + 1, TICK_MS):
        made.tick(now_ms)
    return made


def test_data_that_a_running_loop_reads_has_just_come() -> None:
    assert Standstills().unread_since_ms(7) == 7
    standstills = ticking(1000)
    assert standstills.unread_since_ms(1000 + GAP_MS) == 1000 + GAP_MS


def test_data_that_is_read_after_a_standstill_may_be_as_old_as_that() -> None:
    standstills = ticking(1000)
    assert standstills.unread_since_ms(20_000) == 1000, "before the tick"
    standstills.tick(20_000)
    assert standstills.unread_since_ms(20_000) == 1000, "in the first rounds after it"
    ticking(20_000 + READ_MS - TICK_MS, standstills, 20_000)
    assert standstills.unread_since_ms(20_000 + READ_MS) == 1000
    standstills.tick(20_000 + READ_MS)
    assert standstills.unread_since_ms(20_000 + READ_MS) == 20_000 + READ_MS


def test_two_standstills_with_little_time_between_are_one() -> None:
    standstills = ticking(1000)
    standstills.tick(20_000)
    standstills.tick(20_100)
    assert standstills.unread_since_ms(50_000) == 1000
    standstills.tick(50_000)
    assert standstills.unread_since_ms(50_001) == 1000


async def test_a_lease_counts_from_before_the_standstill_in_which_ps_answer_came() -> None:
    now_ms = 0
    leases = VllmLeases(60, clock=lambda: now_ms)
    where = RemoteEngine(engine_id="e1", host="127.0.0.1", port=5600)
    leases.meet(where)
    before = leases.hold(where, "a", lambda _end: None)
    now_ms = 20_000  # and the loop did not run
    after = leases.hold(where, "b", lambda _end: None)
    asked = leases.hold(where, "c", lambda _end: None, asked_ms=20_000)
    assert after.remaining_ms() == before.remaining_ms() == 30_000
    assert asked.remaining_ms() == 60_000, "what was asked for after the standstill did not come in it"
    await leases.close()
