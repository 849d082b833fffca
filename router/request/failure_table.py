"""What happens to a request after a failure, as a table. Pure.

``TABLE`` maps four things to what is next: the leg that failed, how it failed, whether all tokens that the client has
are known (so that another worker can continue), and whether P still holds the blocks under a lease. ``attempts`` bounds
how often.
docs/faults.md shows the same table, as ``python -m baton_serve.router.request.failure_table`` prints it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import product


class Leg(StrEnum):
    """The part of a request that failed."""

    #: P was asked, and has not answered.
    PREFILL = "prefill"
    #: P's blocks wait under a lease; no D has been asked to read them.
    HELD = "held"
    #: D was asked to read P's blocks, and has not begun to answer.
    DECODE = "decode"
    #: One worker was asked to prefill and decode, without P, and has not begun to answer.
    ALONE = "alone"
    #: The worker's stream is under way.
    STREAM = "stream"


class Failure(StrEnum):
    """The kinds of failure, told apart only where what is next differs."""

    #: The worker never had the request: it refused the connection, or its engine was already dead.
    NOT_TAKEN = "not taken"
    #: The same, by an engine that had not taken this request before either: its ``/health`` says that it can.
    NOT_TAKEN_AGAIN = "not taken again"
    #: The connection broke, or the engine died, while the worker had the request; maybe because of the request.
    DIED = "died"
    #: No answer in time.
    SILENT = "silent"
    #: An error that another worker may not have.
    ERROR = "error"
    #: The worker was told to end the request, or not to take it, although this router had not asked for that.
    ABORTED = "aborted"
    #: D could not read P's blocks.
    READ_FAILED = "read failed"
    #: ``MAX_FAILED_READS`` attempts to read P's blocks failed, so P is taken to be broken.
    P_BROKEN = "P is broken"
    #: P's blocks are gone.
    LEASE_LOST = "lease lost"
    #: No worker is left that could read P's blocks, but others can take the whole request.
    NO_READER = "no reader"


class Next(StrEnum):
    """What to do next."""

    #: Another D reads the same blocks of P.
    SAME_BLOCKS = "same blocks"
    #: Another worker prefills and decodes.
    OTHER_WORKER = "other worker"
    #: Start again from prefill, after the tokens that the client has, if any.
    PREFILL = "prefill"
    #: Another worker continues the stream after the tokens that the client has.
    MIGRATE = "migrate"
    #: The client is sent the error.
    GIVE_UP = "give up"


class CountsAs(StrEnum):
    """Which of the request's own bounds a failure counts against."""

    NOTHING = "nothing"
    #: Counts against ``max_prefill_attempts``.
    PREFILL = "prefill attempt"
    #: Counts against ``max_decode_attempts``, from 0 again after each prefill.
    DECODE = "decode attempt"
    #: Counts against ``MAX_FAILED_READS``, from 0 again after each prefill. Not a decode attempt: several lead
    #: to another prefill, and prefills are counted.
    READ = "failed read"
    #: Counts against ``max_migrations``, which the setting ``max_resumes`` gives.
    MIGRATION = "migration"
    #: Counts against ``ABORT_WAITS_S``; the prefill before it is not counted. No worker has failed.
    ABORT = "abort"


class IllegalFailure(Exception):
    """The leg cannot fail in this way; a bug of the caller. Nothing was noted."""


@dataclass(frozen=True, slots=True)
class FailureRow:
    """One line of the table. None: the row holds for yes and no. ``spends``: a retry is taken from the retry budget.

    Aborts take only one retry per request, since a request that a worker refuses costs it nothing.
    """

    leg: Leg
    failure: Failure
    can_continue: bool | None
    has_lease: bool | None
    next: Next
    counts: CountsAs = CountsAs.NOTHING
    spends: bool = True

    @property
    def waits(self) -> bool:
        """Whether the next attempt must wait: workers that were asked to end a request refuse it for a while."""
        return self.counts is CountsAs.ABORT


def _rows() -> Iterator[FailureRow]:
    ordinary = (Failure.DIED, Failure.SILENT, Failure.ERROR)

    leg = Leg.PREFILL
    yield FailureRow(leg, Failure.NOT_TAKEN, None, None, Next.PREFILL, spends=False)
    for failure in (*ordinary, Failure.NOT_TAKEN_AGAIN, Failure.READ_FAILED):
        yield FailureRow(leg, failure, None, None, Next.PREFILL, CountsAs.PREFILL)
    yield FailureRow(leg, Failure.ABORTED, None, None, Next.PREFILL, CountsAs.ABORT)

    leg = Leg.HELD
    yield FailureRow(leg, Failure.LEASE_LOST, None, None, Next.PREFILL)
    yield FailureRow(
        leg, Failure.NO_READER, None, None, Next.PREFILL, spends=False
    )  # switching to another layout took the retry from the budget

    leg = Leg.DECODE
    yield FailureRow(leg, Failure.NOT_TAKEN, None, True, Next.SAME_BLOCKS, spends=False)
    yield FailureRow(leg, Failure.NOT_TAKEN, None, False, Next.PREFILL, spends=False)
    for failure in (*ordinary, Failure.NOT_TAKEN_AGAIN):
        yield FailureRow(leg, failure, None, True, Next.SAME_BLOCKS, CountsAs.DECODE)
        yield FailureRow(leg, failure, None, False, Next.PREFILL, CountsAs.DECODE)
    yield FailureRow(leg, Failure.READ_FAILED, None, True, Next.SAME_BLOCKS, CountsAs.READ)
    yield FailureRow(leg, Failure.READ_FAILED, None, False, Next.PREFILL, CountsAs.READ)
    yield FailureRow(leg, Failure.P_BROKEN, None, None, Next.PREFILL, CountsAs.READ)
    yield FailureRow(leg, Failure.ABORTED, None, None, Next.PREFILL, CountsAs.ABORT)

    leg = Leg.ALONE
    yield FailureRow(leg, Failure.NOT_TAKEN, None, None, Next.OTHER_WORKER, spends=False)
    for failure in (*ordinary, Failure.NOT_TAKEN_AGAIN, Failure.READ_FAILED):
        yield FailureRow(leg, failure, None, None, Next.OTHER_WORKER, CountsAs.DECODE)
    yield FailureRow(leg, Failure.ABORTED, None, None, Next.PREFILL, CountsAs.ABORT)

    leg = Leg.STREAM
    for failure in (*ordinary, Failure.NOT_TAKEN, Failure.READ_FAILED, Failure.ABORTED):
        yield FailureRow(leg, failure, True, None, Next.MIGRATE, CountsAs.MIGRATION)
        yield FailureRow(leg, failure, False, None, Next.GIVE_UP, spends=False)


ROWS = tuple(_rows())


def _by_situation() -> dict[tuple[Leg, Failure, bool, bool], FailureRow]:
    found: dict[tuple[Leg, Failure, bool, bool], FailureRow] = {}
    for row in ROWS:
        tokens = (False, True) if row.can_continue is None else (row.can_continue,)
        leases = (False, True) if row.has_lease is None else (row.has_lease,)
        for can_continue, has_lease in product(tokens, leases):
            assert found.setdefault((row.leg, row.failure, can_continue, has_lease), row) is row
    return found


TABLE = _by_situation()


def row_of(leg: Leg, failure: Failure, *, can_continue: bool, has_lease: bool) -> FailureRow:
    """The row for a situation. Raises IllegalFailure if there is none."""
    try:
        return TABLE[leg, failure, can_continue, has_lease]
    except KeyError:
        raise IllegalFailure(f"{failure} in the leg {leg}") from None


def as_markdown() -> str:
    """The table as Markdown, for the docs."""
    lines = [
        "| leg | failure | can another continue? | does P's lease hold? | next | counts as | asks the retry budget |",
        "|---|---|---|---|---|---|---|",
    ]
    says = {None: "", True: "yes", False: "no"}
    for row in ROWS:
        then = f"wait, then {row.next}" if row.waits else str(row.next)
        spends = "once a request" if row.spends and row.failure is Failure.ABORTED else says[row.spends]
        cells = (row.leg, row.failure, says[row.can_continue], says[row.has_lease], then, row.counts, spends)
        lines.append(f"| {' | '.join(cells)} |".replace("|  |", "| |").replace("|  |", "| |"))
    return "\n".join(lines)


if __name__ == "__main__":
    print(as_markdown())
