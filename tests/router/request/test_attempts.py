"""What is next after each failure: every row of the table, and every bound."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from baton_serve.core.protocol.errors import ApiError, UpstreamError
from baton_serve.core.protocol.worker import Role
from baton_serve.router.queue.retry_budget import RetryBudget
from baton_serve.router.request.attempts import ABORT_WAITS_S, CLEARED_AFTER_TOKENS, Attempts, Limits, Situation
from baton_serve.router.request.failure_table import (
    ROWS,
    TABLE,
    CountsAs,
    Failure,
    FailureRow,
    IllegalFailure,
    Leg,
    Next,
    as_markdown,
)
from tests.kits.router.workers import new_worker

#: What a worker may do or say, on whatever leg.
OF_WORKERS = (Failure.NOT_TAKEN, Failure.DIED, Failure.SILENT, Failure.ERROR, Failure.ABORTED, Failure.READ_FAILED)
#: What only a second failure of a kind is, by that kind.
FIRST = {Failure.P_BROKEN: Failure.READ_FAILED, Failure.NOT_TAKEN_AGAIN: Failure.NOT_TAKEN}
PLENTY = Limits(99, 99, 99, 99)
ERROR = UpstreamError("It broke.")
P = new_worker("p", "http://p", Role.PREFILL, 8)
D = new_worker("d", "http://d", Role.DECODE, 8)
OTHER = new_worker("other", "http://other", Role.DECODE, 8)


def made(limits: Limits = PLENTY, num_retries: int = 99) -> tuple[Attempts, RetryBudget]:
    budget = RetryBudget(0.0, num_retries / 10)
    return Attempts(limits, budget), budget


def paid(budget: RetryBudget) -> int:
    return int(repr(budget).split()[1])


def at(leg: Leg, failure: Failure, *, can_continue: bool = True, has_lease: bool = True) -> Situation:
    worker = None if leg is Leg.HELD else P if leg is Leg.PREFILL else D
    source = P if leg is Leg.DECODE else None
    return Situation(leg, failure, ERROR, worker, source, "engine", 0, can_continue, has_lease)


def of(row: FailureRow) -> Situation:
    return at(row.leg, row.failure, can_continue=row.can_continue is not False, has_lease=row.has_lease is not False)


def id_of(row: FailureRow) -> str:
    return f"{row.leg}-{row.failure}-{row.can_continue}-{row.has_lease}".replace(" ", "_")


def test_every_failure_of_a_worker_has_a_row_in_the_table() -> None:
    legs = (Leg.PREFILL, Leg.DECODE, Leg.ALONE, Leg.STREAM)
    missing = [key for key in product(legs, OF_WORKERS, (False, True), (False, True)) if key not in TABLE]
    assert missing == []


def test_the_docs_show_the_table() -> None:
    docs = Path(__file__).parents[3] / "docs" / "faults.md"
    assert as_markdown() in docs.read_text()


@pytest.mark.parametrize("row", ROWS, ids=id_of)
def test_each_row_does_what_it_says(row: FailureRow) -> None:
    attempts, budget = made()
    attempts.num_prefills = 0 if row.leg is Leg.PREFILL else 1
    situation = of(row)
    if row.failure in FIRST:  # it is what the second failure makes of the first
        situation = replace(situation, failure=FIRST[row.failure])
        attempts.after(situation, 0.0)
    row_paid = paid(budget)
    decision = attempts.after(situation, 0.0)

    assert decision.next is row.next
    assert (decision.error is ERROR) == (row.next is Next.GIVE_UP)
    assert decision.wait_s == (ABORT_WAITS_S[0] if row.waits else 0)
    assert paid(budget) - row_paid == row.spends
    assert attempts.num_migrations == (row.next is Next.MIGRATE) == attempts.is_migrating
    assert attempts.num_aborts == (row.counts is CountsAs.ABORT)
    is_abort = row.failure is Failure.ABORTED
    assert attempts.failed_prefill == (
        {P} if (row.leg is Leg.PREFILL and not is_abort) or row.failure is Failure.P_BROKEN else set()
    )
    asked_d = row.leg in (Leg.DECODE, Leg.ALONE, Leg.STREAM) and not is_abort
    assert attempts.tried_decode == ({D} if asked_d else set())
    stays_out = asked_d and (row.leg is Leg.STREAM or row.failure is Failure.SILENT)
    assert attempts.failed_decode == ({D} if stays_out else set())
    assert attempts.dead_engines == ({"engine": 0} if row.failure is Failure.DIED else {})
    assert attempts.last_error is (None if row.leg is Leg.HELD else ERROR)


@pytest.mark.parametrize("row", [row for row in ROWS if row.spends and row.failure not in FIRST], ids=id_of)
def test_a_request_without_budget_is_given_up_at_any_failure_that_costs_some(row: FailureRow) -> None:
    attempts, _ = made(num_retries=0)
    attempts.num_prefills = 1
    decision = attempts.after(of(row), 0.0)
    assert (decision.next, decision.error, decision.is_over_budget) == (Next.GIVE_UP, ERROR, True)


def nexts(attempts: Attempts, *situations: Situation) -> list[Next]:
    return [attempts.after(situation, 0.0).next for situation in situations]


class TestBounds:
    def test_prefills_are_bounded(self) -> None:
        attempts, _ = made(Limits(3, 9, 9, 9))
        assert nexts(attempts, *[at(Leg.PREFILL, Failure.ERROR)] * 3) == [Next.PREFILL] * 2 + [Next.GIVE_UP]

    def test_prefills_whose_blocks_are_lost_are_bounded(self) -> None:
        attempts, _ = made(Limits(2, 9, 9, 9))
        lost = at(Leg.HELD, Failure.LEASE_LOST)
        attempts.prefilled()
        assert nexts(attempts, lost) == [Next.PREFILL]
        attempts.prefilled()
        assert nexts(attempts, lost) == [Next.GIVE_UP]

    @pytest.mark.parametrize("leg", [Leg.PREFILL, Leg.DECODE, Leg.ALONE])
    def test_a_request_that_each_engine_does_not_take_once_is_no_attempt(self, leg: Leg) -> None:
        attempts, budget = made(Limits(1, 1, 9, 9), num_retries=0)
        refused = [replace(at(leg, Failure.NOT_TAKEN), engine=f"engine {number}") for number in range(20)]
        assert Next.GIVE_UP not in nexts(attempts, *refused)
        assert (attempts.num_prefills, paid(budget)) == (0, 0)

    @pytest.mark.parametrize("leg", [Leg.PREFILL, Leg.DECODE, Leg.ALONE])
    def test_a_request_that_one_engine_does_not_take_again_is_an_attempt_and_a_retry(self, leg: Leg) -> None:
        attempts, budget = made(Limits(3, 3, 9, 9))
        refused = [at(leg, Failure.NOT_TAKEN)] * 4
        assert [one is Next.GIVE_UP for one in nexts(attempts, *refused)] == [False] * 3 + [True]
        assert paid(budget) == 2

    @pytest.mark.parametrize("leg", [Leg.DECODE, Leg.ALONE])
    def test_decodes_of_one_prefill_are_bounded(self, leg: Leg) -> None:
        attempts, _ = made(Limits(9, 2, 9, 9))
        failed = at(leg, Failure.ERROR)
        for _ in range(3):
            attempts.prefilled()
            assert nexts(attempts, failed)[0] is not Next.GIVE_UP
        assert nexts(attempts, failed) == [Next.GIVE_UP]

    def test_reads_that_fail_are_no_decode_attempts(self) -> None:
        attempts, _ = made(Limits(9, 1, 9, 9))
        attempts.prefilled()
        assert nexts(attempts, *[at(Leg.DECODE, Failure.READ_FAILED)] * 2) == [Next.SAME_BLOCKS, Next.PREFILL]
        assert attempts.failed_prefill == {P}

    def test_migrations_are_bounded(self) -> None:
        attempts, _ = made(Limits(9, 9, 2, 9))
        assert nexts(attempts, *[at(Leg.STREAM, Failure.ERROR)] * 3) == [Next.MIGRATE] * 2 + [Next.GIVE_UP]

    def test_a_stream_that_goes_on_prefills_anew(self) -> None:
        attempts, _ = made(Limits(2, 9, 9, 9))
        attempts.prefilled()
        attempts.prefilled()
        nexts(attempts, at(Leg.STREAM, Failure.ERROR))
        assert attempts.num_prefills == 0
        assert (attempts.continued(), attempts.continued()) == (True, False)

    @pytest.mark.parametrize("leg", [Leg.PREFILL, Leg.DECODE, Leg.ALONE])
    def test_aborts_wait_ever_longer_and_pay_once(self, leg: Leg) -> None:
        attempts, budget = made(Limits(2, 9, 9, 9))
        waits = []
        for _ in ABORT_WAITS_S:
            if leg is not Leg.PREFILL:
                attempts.prefilled()
            waits.append(attempts.after(at(leg, Failure.ABORTED), 0.0).wait_s)
        assert (tuple(waits), paid(budget), attempts.num_prefills) == (ABORT_WAITS_S, 1, 0)
        assert nexts(attempts, at(leg, Failure.ABORTED)) == [Next.GIVE_UP]


class TestDeaths:
    def end(self, attempts: Attempts, engine: str, num_tokens: int = 0) -> ApiError | None:
        situation = Situation(Leg.STREAM, Failure.DIED, ERROR, D, None, engine, num_tokens, can_continue=True)
        return attempts.after(situation, 0.0).error

    def test_a_request_is_given_up_after_so_many_deaths(self) -> None:
        attempts, _ = made(Limits(9, 9, 9, 2))
        assert self.end(attempts, "one") is None
        error = self.end(attempts, "two")
        assert error is not None and error.code == "worker_deaths"

    def test_an_engine_that_breaks_twice_has_died_once(self) -> None:
        attempts, _ = made(Limits(9, 9, 9, 2))
        assert [self.end(attempts, "one") for _ in range(3)] == [None] * 3

    def test_a_stream_leaves_deaths_behind(self) -> None:
        attempts, _ = made(Limits(9, 9, 9, 2))
        ends = [self.end(attempts, str(i), i * CLEARED_AFTER_TOKENS) for i in range(5)]
        assert ends == [None] * 5
        assert attempts.dead_engines == {"4": 4 * CLEARED_AFTER_TOKENS}


def test_attempts_at_d_begin_anew_but_a_d_that_hung_stays_out() -> None:
    attempts, _ = made()
    attempts.prefilled()
    nexts(attempts, at(Leg.DECODE, Failure.SILENT), Situation(Leg.DECODE, Failure.ERROR, ERROR, OTHER, P, "other"))
    assert attempts.tried_decode == {D, OTHER}
    attempts.prefilled()
    assert attempts.tried_decode == {D}


def test_a_failure_that_a_leg_cannot_have_is_a_bug() -> None:
    with pytest.raises(IllegalFailure):
        made()[0].after(at(Leg.PREFILL, Failure.LEASE_LOST), 0.0)
