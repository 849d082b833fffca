"""What was tried for one request, and what is next after a failure. Pure: no I/O, time is passed in.

``failure_table`` says what is next. The number of attempts is bounded: per request, by the deaths of workers that the
request may have caused, and by the retry budget of all requests together. Past a bound, GIVE_UP is next.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from baton_serve.core.protocol.errors import ApiError, UpstreamError
from baton_serve.router.pool import Worker
from baton_serve.router.queue.retry_budget import RetryBudget
from baton_serve.router.request.failure_table import CountsAs, Failure, FailureRow, Leg, Next, row_of

#: After this many failed reads of P's blocks, P is taken to be broken.
MAX_FAILED_READS: Final = 2
#: A stream that has since got this many tokens further did not cause a worker's death: otherwise the next worker would
#: have died at the same token. At most two tokens were computed and not sent when a worker was killed (measured: 94
#: streams, 8 deaths), and a worker may hold back a few tokens whose text is not complete.
CLEARED_AFTER_TOKENS: Final = 8
#: Seconds to wait before each further attempt of a leg that a worker aborted. The first wait is short, for a late abort
#: of an earlier attempt. Their sum is longer than workers refuse a router that was taken for dead: ``REFUSE_GONE_S``
#: after the last call about that router, which comes within ``TELL_GONE_S`` (both in ``core.protocol.router``).
ABORT_WAITS_S: tuple[float, ...] = (0.1, 0.3, 0.6, 1.0, 1.6)
#: Most requests never fail, so they share one set.
_NOBODY: Final[frozenset[Worker]] = frozenset()
_NONE: Final[frozenset[str]] = frozenset()


@dataclass(frozen=True, slots=True)
class Limits:
    """How often one request may be prefilled, decoded and migrated, and how many workers may have died with it."""

    max_prefill_attempts: int
    max_decode_attempts: int
    max_migrations: int
    max_worker_deaths: int


@dataclass(frozen=True, slots=True)
class Situation:
    """How a leg failed. ``worker``: the worker that was asked; None if none was."""

    leg: Leg
    failure: Failure
    error: ApiError
    worker: Worker | None = None
    #: The P whose blocks were to be read.
    source: Worker | None = None
    #: The key under which a death is noted: ``Worker.key``.
    engine: str = ""
    #: Tokens that the client has been sent.
    num_tokens: int = 0
    #: Whether all tokens that the client has are known, so that another worker can continue; streams only.
    can_continue: bool = False
    has_lease: bool = False


@dataclass(frozen=True, slots=True)
class Decision:
    """What is next, after a wait of ``wait_s`` seconds, in which the request holds no place on a worker.

    ``error``: what the client is sent, for GIVE_UP only. ``is_over_budget``: GIVE_UP because the retry budget of all
    requests is spent.
    """

    next: Next
    wait_s: float = 0.0
    error: ApiError | None = None
    is_over_budget: bool = False


class Attempts:
    """All that was tried for one request, and the workers that failed it."""

    def __init__(self, limits: Limits, budget: RetryBudget) -> None:
        self._limits = limits
        self._budget = budget
        #: P that failed, or whose blocks could not be read.
        self.failed_prefill: frozenset[Worker] = _NOBODY
        #: D whose stream broke, or that did not answer in time.
        self.failed_decode: frozenset[Worker] = _NOBODY
        #: D in ``failed_decode``, and all D that failed since the last prefill.
        self.tried_decode: frozenset[Worker] = _NOBODY
        #: Engines that died, or lost the connection, with the request on them, and how many tokens it had then.
        self.dead_engines: dict[str, int] = {}
        #: Answers of P, failed attempts on P, and prefills by D itself; minus the prefills that an abort undid.
        self.num_prefills = 0
        #: How often its prompt was computed, or was about to be: never set back.
        self.num_computed = 0
        self.num_migrations = 0
        #: The stream broke, and no new token has come since.
        self.is_migrating = False
        self.num_aborts = 0
        #: Legs tried again, prefill or decode.
        self.num_retries = 0
        self.last_error: ApiError | None = None
        self._num_decodes = self._num_reads = 0
        self._has_paid_for_aborts = False
        #: Engines that did not take the request.
        self._refused: frozenset[str] = _NONE

    def __repr__(self) -> str:
        return f"<Attempts {self.num_prefills} prefills, {self.num_migrations} migrations, last {self.last_error!r}>"

    def prefilled(self, *, is_shared: bool = False) -> None:
        """Count a prefill (P has answered, or the next worker prefills itself); decode attempts start from 0 again.

        ``is_shared``: P had answered another choice, and computed nothing for this one.
        """
        self.num_prefills += 1
        self.num_computed += not is_shared
        self._num_decodes = self._num_reads = 0
        self.tried_decode = self.failed_decode

    def continued(self) -> bool:
        """Note new tokens. Returns True if they continue a stream that had broken."""
        was_migrating, self.is_migrating = self.is_migrating, False
        return was_migrating

    def after(self, situation: Situation, now_s: float) -> Decision:
        """Note a failure, and return what is next. Raises IllegalFailure.

        ``now_s`` is of any monotonic clock.
        """
        row = row_of(
            situation.leg, self._kind_of(situation), can_continue=situation.can_continue, has_lease=situation.has_lease
        )
        if situation.leg is not Leg.HELD:
            self.last_error = situation.error
        self._exclude(row, situation)
        decision = self._past_a_bound(row, situation) or self._unpaid(row, situation, now_s)
        if decision is not None:
            return decision
        if row.next is Next.MIGRATE:
            self.num_migrations += 1
            self.num_prefills = 0
            self.is_migrating = True
        if row.counts is not CountsAs.ABORT:
            return Decision(row.next)
        self.num_aborts += 1
        return Decision(row.next, ABORT_WAITS_S[self.num_aborts - 1])

    def _kind_of(self, situation: Situation) -> Failure:
        """The failure, by what was tried before."""
        failure = situation.failure
        if situation.leg is Leg.STREAM:
            return failure
        if failure is Failure.READ_FAILED and situation.leg is Leg.DECODE and self._num_reads + 1 >= MAX_FAILED_READS:
            return Failure.P_BROKEN
        if failure is Failure.NOT_TAKEN:
            if situation.engine in self._refused:
                return Failure.NOT_TAKEN_AGAIN
            self._refused |= {situation.engine}
        return failure

    def _exclude(self, row: FailureRow, situation: Situation) -> None:
        worker = situation.worker
        if worker is None or row.failure is Failure.ABORTED:  # the worker did what it was asked
            return
        if row.leg is Leg.PREFILL:
            self.failed_prefill |= {worker}
            return
        self.tried_decode |= {worker}
        if (
            row.leg is Leg.STREAM or row.failure is Failure.SILENT
        ):  # the worker may hang, so it is not asked after another prefill either
            self.failed_decode |= {worker}
        if row.failure is Failure.P_BROKEN and situation.source is not None:
            self.failed_prefill |= {situation.source}

    def _past_a_bound(self, row: FailureRow, situation: Situation) -> Decision | None:
        """GIVE_UP if the request has reached one of its own bounds."""
        limits = self._limits
        if row.failure is Failure.DIED:
            self._note_death(situation)
        if row.next is Next.GIVE_UP or self._count(row):
            return Decision(Next.GIVE_UP, error=situation.error)
        if row.failure is Failure.DIED and len(self.dead_engines) >= limits.max_worker_deaths:
            return Decision(
                Next.GIVE_UP,
                error=UpstreamError(
                    f"{len(self.dead_engines)} workers died or lost their connection while they had this request; "
                    "it is not given to another one.",
                    code="worker_deaths",
                ),
            )
        if row.next is Next.PREFILL and self.num_prefills >= limits.max_prefill_attempts:
            return Decision(Next.GIVE_UP, error=situation.error)
        return None

    def _count(self, row: FailureRow) -> bool:
        """Count the attempt. Returns True if it was the last allowed one of its kind."""
        limits = self._limits
        match row.counts:
            case CountsAs.PREFILL:
                self.num_prefills += 1
                return self.num_prefills >= limits.max_prefill_attempts
            case CountsAs.DECODE:
                self._num_decodes += 1
                return self._num_decodes >= limits.max_decode_attempts
            case CountsAs.READ:
                self._num_reads += 1
            case CountsAs.MIGRATION:
                return self.num_migrations >= limits.max_migrations
            case CountsAs.ABORT:
                if row.leg is not Leg.PREFILL:
                    self.num_prefills -= 1
                return self.num_aborts >= len(ABORT_WAITS_S)
        return False

    def _note_death(self, situation: Situation) -> None:
        """Note a death, and forget deaths after which the stream got far enough. Without a stream, none is forgotten.

        A worker that is asked again before its death is known, and fails again, counts as one death.
        """
        cleared_at = situation.num_tokens - CLEARED_AFTER_TOKENS
        self.dead_engines = {key: num for key, num in self.dead_engines.items() if num > cleared_at}
        self.dead_engines[situation.engine] = situation.num_tokens

    def _unpaid(self, row: FailureRow, situation: Situation, now_s: float) -> Decision | None:
        """GIVE_UP if the retry budget of all requests together is spent."""
        is_abort = row.failure is Failure.ABORTED
        if not row.spends or (is_abort and self._has_paid_for_aborts):
            return None
        self._has_paid_for_aborts = self._has_paid_for_aborts or is_abort
        if self._budget.take(now_s):
            return None
        return Decision(Next.GIVE_UP, error=situation.error, is_over_budget=True)
