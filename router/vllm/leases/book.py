"""The leases on vLLM's prefill workers, without I/O: when to renew each, and until when P surely keeps its blocks.

All times are of one clock of this machine in ms, passed in, which goes on while the machine is suspended. vLLM answers
no notification, so the deadlines here are worked out, each from below. P (vLLM 0.32) does this, by its own clock:

- A lease ends ``kv_lease_duration`` after the end of the prefill.
- A renewal sets its end to ``max(end, now + kv_lease_duration * 2 // 3)``, if the lease has not been ended before.
- Whenever its engine steps, P first takes the notifications that have arrived, and then ends the leases that are due.

From this, with the duration that the router was told (``vllm_lease_duration_s``, at most P's own):

- *P's answer.* The prefill ended after P was asked, so the first deadline is that time plus the duration, or later. For
  a long prefill that says little. The prefill also ended before P's answer arrived here, at an unknown time: so the
  deadline may also be the arrival, plus the duration, minus a sixth of it (``ANSWER_MARGIN``). The margin is for what
  P's server did after the prefill (the text, HTTP) and for this router's event loop, unless that stood still: then
  ``standstills`` says since when the answer may have lain unread. The margin is the only assumption on this page. The
  first renewal, which needs no such margin, goes out at once.
- *A renewal.* P takes it after it was sent. So if P still had the lease then, P's new end is not before the time when
  sending began, plus two thirds. P had the lease if the renewal was there before the old deadline. When it was handed
  to the network is not known, only that this was before it was reported as sent; so the report must be here
  ``DELIVERY_MS`` before the old deadline. Otherwise the renewal counts for nothing.
- P may get a renewal before its ranks know of the lease, and then ignores it. This does no harm: ranks count the
  duration from when they get to know of the lease, so its end is later than the renewal would have made it.
- A renewal that could not be sent to *every* rank counts for nothing, since each rank ends leases by itself.

When a deadline passes, the lease may have ended: D could read blocks of another prompt, and nothing would tell. So the
lease is over, once and for all, even if a later renewal might have saved it.

A call looks only at its own leases and at leases that are due: thousands are held at once.
"""

from __future__ import annotations

import heapq
import itertools
from collections import OrderedDict, deque
from collections.abc import Container
from dataclasses import dataclass, field

from baton_serve.router.vllm.leases.notices import check_lease_id

#: The share of a duration that may pass between the end of a prefill and the arrival of P's answer.
ANSWER_MARGIN = 1 / 6
#: ms between the hand-over of a notification to the network and P's having it. Over TCP on one machine it was 0.3 ms.
DELIVERY_MS = 200
#: Renewals in one duration: what vLLM's own decode workers send.
RENEWALS_PER_DURATION = 6


class AlreadyHeldError(Exception):
    """The lease is held already; nothing was changed."""


@dataclass(slots=True, eq=False)
class _Lease:
    engine_id: str
    lease_id: str
    deadline_ms: int
    #: Whether a D may know of it, and so may be reading the blocks.
    is_given: bool = False
    #: Whether it is neither held, nor is its release to be sent.
    is_gone: bool = False


@dataclass(slots=True)
class _Engine:
    leases: dict[str, _Lease] = field(default_factory=dict)
    #: By lease id, when each is to be renewed: first those that are due, then the others in the order of their times.
    #: An ordered dict, because a dict is slow to tell its first key when many before it are gone.
    renewals: OrderedDict[str, int] = field(default_factory=OrderedDict)
    #: The leases whose release is to be sent.
    releases: dict[_Lease, None] = field(default_factory=dict)

    def drop(self, lease_id: str) -> _Lease | None:
        """Hold a lease no longer; returns it if it was held."""
        self.renewals.pop(lease_id, None)
        return self.leases.pop(lease_id, None)

    def due_ms(self) -> int | None:
        """When there is something to send; None: not before another call."""
        return 0 if self.releases else next(iter(self.renewals.values()), None)

    def take_renewals(self, until_ms: int, again_ms: int) -> tuple[str, ...]:
        """Take the leases that are to be renewed until then; they are to be renewed again at ``again_ms``."""
        taken = []
        while self.renewals and next(iter(self.renewals.values())) <= until_ms:
            taken.append(self.renewals.popitem(last=False)[0])
        self.renewals.update(dict.fromkeys(taken, again_ms))
        return tuple(taken)

    def renew_now(self, lease_id: str, now_ms: int) -> None:
        """Have a lease renewed at once."""
        self.renewals[lease_id] = now_ms
        self.renewals.move_to_end(lease_id, last=False)


@dataclass(slots=True)
class _Expiries:
    """The leases that P may expire: lost leases, and leases given to a D that never confirmed that it has read them.

    P may hear of such a lease from D after that: a D may read late, and vLLM's reports a read once more when its
    unstreamed request is cancelled.
    """

    expired_ms: deque[int] = field(default_factory=deque)
    late_ms: deque[int] = field(default_factory=deque)
    #: When P is known to have worked last. An idle P expires nothing.
    worked_ms: int = 0


@dataclass(frozen=True)
class Batch:
    """What to send to every rank of one engine now. The caller then calls ``sent`` or ``not_sent``."""

    engine_id: str
    release: tuple[str, ...]
    renew: tuple[str, ...]
    began_ms: int


class LeaseBook:
    """The leases of all engines."""

    def __init__(self, duration_s: int) -> None:
        """``duration_s``: at most the ``kv_lease_duration`` of every P, seconds."""
        self._duration_ms = duration_s * 1000
        self._extension_ms = duration_s * 2 // 3 * 1000  # rounded as vLLM does
        #: ms between two renewals of a lease.
        self.interval_ms = self._duration_ms // RENEWALS_PER_DURATION
        self._engines: dict[str, _Engine] = {}
        #: A heap of the leases that are held, and of those whose release is to be sent, by the deadlines that they had
        #: once. The number in between tells equal ones apart.
        self._by_deadline: list[tuple[int, int, _Lease]] = []
        self._numbers = itertools.count()
        #: Leases that P will have to expire, as far as the router can tell, by engine that ``use_expected`` is about.
        self._expiries: dict[str, _Expiries] = {}

    def __len__(self) -> int:
        """How many leases are held."""
        return sum(len(engine.leases) for engine in self._engines.values())

    def __contains__(self, engine_id: object) -> bool:
        """Whether a lease of that engine is held, or a release is to be sent to it."""
        return engine_id in self._engines

    def hold(self, engine_id: str, lease_id: str, answered_ms: int, asked_ms: int | None = None) -> None:
        """Renew the lease at once and from now on; P's answer did not come before ``answered_ms``, and P was not asked
        before ``asked_ms`` (None: that is not known).

        Raises AlreadyHeldError, and ValueError for an id that notifications cannot carry.
        """
        check_lease_id(lease_id)
        if self.holds(engine_id, lease_id):
            raise AlreadyHeldError(f"lease {lease_id} is held already")
        prefilled_ms = answered_ms - round(self._duration_ms * ANSWER_MARGIN)
        if asked_ms is not None:
            answered_ms, prefilled_ms = max(answered_ms, asked_ms), max(prefilled_ms, asked_ms)
        engine = self._engines.setdefault(engine_id, _Engine())
        engine.leases[lease_id] = lease = _Lease(engine_id, lease_id, prefilled_ms + self._duration_ms)
        engine.renew_now(lease_id, answered_ms)
        heapq.heappush(self._by_deadline, (lease.deadline_ms, next(self._numbers), lease))
        if (expiries := self._expiries.get(engine_id)) is not None:
            expiries.worked_ms = answered_ms

    def holds(self, engine_id: str, lease_id: str) -> bool:
        """Whether the lease is held."""
        return self._lease(engine_id, lease_id) is not None

    def give(self, engine_id: str, lease_id: str) -> None:
        """Note that a D is about to know of the lease. Unknown leases are ignored, here and below: one may just have
        been lost.
        """
        if (lease := self._lease(engine_id, lease_id)) is not None:
            lease.is_given = True

    def is_given(self, engine_id: str, lease_id: str) -> bool:
        """Whether a D may know of the lease, which is held."""
        lease = self._lease(engine_id, lease_id)
        return lease is not None and lease.is_given

    def confirm(self, engine_id: str, lease_id: str) -> None:
        """Stop renewing: D has read the blocks, and P has heard that from D."""
        self._pop(engine_id, lease_id)

    def release(self, engine_id: str, lease_id: str, now_ms: int) -> None:
        """Stop renewing, and have P told to free the blocks, unless a D may be reading them: D tells P itself, or the
        lease expires.
        """
        lease = self._lease(engine_id, lease_id)
        if lease is None:
            return
        if lease.is_given or lease.deadline_ms <= now_ms:
            self._expect(engine_id, 1, now_ms)
            self._pop(engine_id, lease_id)
        else:
            engine = self._engines[engine_id]
            engine.drop(lease_id)
            engine.releases[lease] = None

    def remaining_ms(self, engine_id: str, lease_id: str, now_ms: int) -> int:
        """Milliseconds for which P surely keeps the blocks; 0 once the lease is over."""
        lease = self._lease(engine_id, lease_id)
        return 0 if lease is None else max(0, lease.deadline_ms - now_ms)

    def next_ms(self, connected: Container[str]) -> int | None:
        """When ``take_over`` or, for a connected engine, ``take`` next has something; None: not before another call."""
        first = self._next_over()
        times = [engine.due_ms() for engine_id, engine in self._engines.items() if engine_id in connected]
        times.append(None if first is None else first.deadline_ms)
        return min((at_ms for at_ms in times if at_ms is not None), default=None)

    def take(self, engine_id: str, now_ms: int) -> Batch | None:
        """What to send to that engine now, if anything. A release is taken once: vLLM would take a second one for a
        read after the end of the lease.
        """
        engine = self._engines.get(engine_id)
        if engine is None or (due_ms := engine.due_ms()) is None or due_ms > now_ms:
            return None
        release = tuple(lease.lease_id for lease in engine.releases if lease.deadline_ms > now_ms)
        self._expect(engine_id, len(engine.releases) - len(release), now_ms)
        for lease in engine.releases:
            lease.is_gone = True
        engine.releases.clear()
        # Some before their time, so that leases that are held at different times come to be renewed together. Not all
        # of them, because each new lease is due at once.
        renew = engine.take_renewals(now_ms + self.interval_ms // 2, now_ms + self.interval_ms)
        self._forget_idle(engine_id)
        return Batch(engine_id, release, renew, now_ms) if release or renew else None

    def sent(self, batch: Batch, now_ms: int) -> None:
        """Note that every rank was sent this, as is reported now."""
        for lease_id in batch.renew:
            lease = self._lease(batch.engine_id, lease_id)
            if lease is not None and now_ms + DELIVERY_MS <= lease.deadline_ms:
                lease.deadline_ms = max(lease.deadline_ms, batch.began_ms + self._extension_ms)

    def not_sent(self, batch: Batch, now_ms: int) -> None:
        """Note that some rank was not sent this. The renewals are due again; the releases are not tried again."""
        self._expect(batch.engine_id, len(batch.release), now_ms)
        for lease_id in batch.renew:
            if self.holds(batch.engine_id, lease_id):
                self._engines[batch.engine_id].renew_now(lease_id, now_ms)

    def take_over(self, now_ms: int) -> list[tuple[str, str]]:
        """The held leases, as engine id and lease id, whose deadline has passed; they are held no longer."""
        over = []
        while (lease := self._next_over()) is not None and lease.deadline_ms <= now_ms:
            self._expect(lease.engine_id, 1, now_ms)
            lease.is_gone = True
            engine = self._engines[lease.engine_id]
            if lease in engine.releases:
                del engine.releases[lease]
            else:
                engine.drop(lease.lease_id)
                over.append((lease.engine_id, lease.lease_id))
            self._forget_idle(lease.engine_id)
        return over

    def use_expected(self, engine_id: str, num_seen: int, *, late: bool = False) -> int:
        """Of ``num_seen`` leases that P says it expired, or (``late``) was told of too late, how many were expected.

        Each expected expiry is used once. A lease that P had two durations to expire, and did not, was read, and is
        expected no more. Nothing is kept for an engine before the first call, nor after ``forget``.
        """
        expiries = self._expiries.setdefault(engine_id, _Expiries())
        expected_ms, num_used = expiries.late_ms if late else expiries.expired_ms, 0
        while expected_ms and num_used < num_seen:
            expected_ms.popleft()
            num_used += 1
        while expected_ms and expected_ms[0] + 2 * self._duration_ms <= expiries.worked_ms:
            expected_ms.popleft()
        return num_used

    def forget(self, engine_id: str) -> None:
        """Expect no more of an engine that is gone."""
        self._expiries.pop(engine_id, None)

    def _expect(self, engine_id: str, num_leases: int, now_ms: int) -> None:
        if (expiries := self._expiries.get(engine_id)) is not None:
            expiries.expired_ms.extend([now_ms] * num_leases)
            expiries.late_ms.extend([now_ms] * num_leases)

    def _next_over(self) -> _Lease | None:
        """The lease whose deadline comes first.

        What is gone, or has a later deadline by now, is looked at when its first deadline has come, so no call costs
        more than the logarithm of what was held since then.
        """
        while self._by_deadline:
            was_ms, _, lease = self._by_deadline[0]
            if lease.is_gone:
                heapq.heappop(self._by_deadline)
            elif lease.deadline_ms != was_ms:
                heapq.heapreplace(self._by_deadline, (lease.deadline_ms, next(self._numbers), lease))
            else:
                return lease
        return None

    def _lease(self, engine_id: str, lease_id: str) -> _Lease | None:
        engine = self._engines.get(engine_id)
        return None if engine is None else engine.leases.get(lease_id)

    def _pop(self, engine_id: str, lease_id: str) -> None:
        if (engine := self._engines.get(engine_id)) is not None and (lease := engine.drop(lease_id)) is not None:
            lease.is_gone = True
            self._forget_idle(engine_id)

    def _forget_idle(self, engine_id: str) -> None:
        engine = self._engines[engine_id]
        if not engine.leases and not engine.releases:
            del self._engines[engine_id]
