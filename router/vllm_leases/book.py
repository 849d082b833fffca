"""The leases on vLLM's prefill workers, without I/O: when to renew each, and until when P surely keeps its blocks.

All times are of one clock of this machine in ms, passed in, which goes on while the machine is suspended. vLLM answers
no notification, so the deadlines here are worked out, each from below. P (vLLM 0.32) does this, by its own clock:

- A lease ends ``kv_lease_duration`` after the end of the prefill.
- A renewal sets its end to ``max(end, now + kv_lease_duration * 2 // 3)``, if the lease has not been ended before.
- Whenever its engine steps, P first takes the notifications that have arrived, and then ends the leases that are due.

From this, with the duration that the router was told (``vllm_lease_duration_s``, at most P's own):

- *P's answer.* The prefill ended after P was asked, so the first deadline is that time plus the duration, or later. For
  a long prefill that says little. It ended before P's answer arrived here, nobody knows how long before: so the
  deadline may also be the arrival, plus the duration, minus a sixth of it (``ANSWER_MARGIN``). The margin is for what
  P's server did after the prefill (the text, HTTP) and for this router's event loop, unless that stood still: then
  ``standstills`` says since when the answer may have lain unread. It is the only assumption on this page. The first
  renewal, which needs no such margin, goes out at once.
- *A renewal.* P takes it after it was sent. So if P still had the lease then, P's new end is not before the time when
  sending began, plus two thirds. P had the lease if the renewal was there before the old deadline. When it was handed
  to the network is not known, only that this was before it was reported as sent; so the report must be here
  ``DELIVERY_MS`` before the old deadline. Otherwise the renewal counts for nothing.
- P may get a renewal before its ranks know of the lease, and then ignores it. This does no harm: ranks count the
  duration from when they get to know of the lease, so its end is later than the renewal would have made it.
- A renewal that could not be sent to *every* rank counts for nothing, since each rank ends leases by itself.

When a deadline passes, the lease may have ended: D could read blocks of another prompt, and nothing would tell. So the
lease is over, once and for all, even if a later renewal might have saved it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from router.vllm_leases.notices import check_lease_id

if TYPE_CHECKING:
    from collections.abc import Container

#: The share of a duration that may pass between the end of a prefill and the arrival of P's answer.
ANSWER_MARGIN = 1 / 6
#: ms between the hand-over of a notification to the network and P's having it. Over TCP on one machine it was 0.3 ms.
DELIVERY_MS = 200
#: Renewals in one duration: what vLLM's own decode workers send.
RENEWALS_PER_DURATION = 6


class AlreadyHeldError(Exception):
    """The lease is held already; nothing was changed."""


@dataclass(slots=True)
class _Lease:
    deadline_ms: int
    renew_at_ms: int
    #: Whether a D may know of it, and so may be reading the blocks.
    is_given: bool = False


@dataclass(slots=True)
class _Engine:
    leases: dict[str, _Lease] = field(default_factory=dict)
    #: Deadlines of the leases whose release is to be sent, by lease id.
    releases: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class _Expiries:
    """Lost leases, and those that were given to a D that never confirmed: it may have told P that it has read.

    P may expire each of these, and may also hear of each from a D after that: a D that reads late, or that says once
    more that it has read when its request is cancelled, as vLLM's does for an unstreamed one.
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
        #: Leases that P will have to expire, as far as the router can tell, of the engines that somebody asked about.
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
        leases = self._engines.setdefault(engine_id, _Engine()).leases
        leases[lease_id] = _Lease(prefilled_ms + self._duration_ms, renew_at_ms=answered_ms)
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
        else:
            self._engines[engine_id].releases[lease_id] = lease.deadline_ms
        self._pop(engine_id, lease_id)

    def remaining_ms(self, engine_id: str, lease_id: str, now_ms: int) -> int:
        """Milliseconds for which P surely keeps the blocks; 0 once the lease is over."""
        lease = self._lease(engine_id, lease_id)
        return 0 if lease is None else max(0, lease.deadline_ms - now_ms)

    def next_ms(self, connected: Container[str]) -> int | None:
        """When ``take_over`` or, for a connected engine, ``take`` next has something; None: not before another call."""
        return min((_next_ms(engine, key in connected) for key, engine in self._engines.items()), default=None)

    def take(self, engine_id: str, now_ms: int) -> Batch | None:
        """What to send to that engine now, if anything. A release is taken once: vLLM would take a second one for a
        read after the end of the lease.
        """
        engine = self._engines.get(engine_id)
        if engine is None or _due_ms(engine) > now_ms:
            return None
        release = tuple(key for key, deadline_ms in engine.releases.items() if deadline_ms > now_ms)
        self._expect(engine_id, len(engine.releases) - len(release), now_ms)
        engine.releases.clear()
        # Some before their time, so that leases that are held at different times come to be renewed together. Not all
        # of them, because each new lease is due at once.
        soon_ms = now_ms + self.interval_ms // 2
        renew = tuple(lease_id for lease_id, lease in engine.leases.items() if lease.renew_at_ms <= soon_ms)
        for lease_id in renew:
            engine.leases[lease_id].renew_at_ms = now_ms + self.interval_ms
        batch = Batch(engine_id, release, renew, now_ms)
        self._forget_idle(engine_id)
        return batch if release or batch.renew else None

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
            if (lease := self._lease(batch.engine_id, lease_id)) is not None:
                lease.renew_at_ms = now_ms

    def take_over(self, now_ms: int) -> list[tuple[str, str]]:
        """The held leases, as engine id and lease id, whose deadline has passed; they are held no longer."""
        over = [
            (engine_id, lease_id)
            for engine_id, engine in self._engines.items()
            for lease_id, lease in engine.leases.items()
            if lease.deadline_ms <= now_ms
        ]
        for engine_id, lease_id in over:
            self._expect(engine_id, 1, now_ms)
            self._pop(engine_id, lease_id)
        self._drop_late_releases(now_ms)
        return over

    def use_expected(self, engine_id: str, num_seen: int, *, late: bool = False) -> int:
        """How many were expected of the leases of that engine that P says it expired, or (``late``) that it says it was
        told of too late. Each is expected once.

        Those that P had two durations to expire, and did not, were read: they excuse no other. Nothing is kept for an
        engine before it is first asked about, nor after ``forget``.
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

    def _drop_late_releases(self, now_ms: int) -> None:
        for engine_id, engine in list(self._engines.items()):
            late = [lease_id for lease_id, deadline_ms in engine.releases.items() if deadline_ms <= now_ms]
            for lease_id in late:
                del engine.releases[lease_id]
            if late:
                self._expect(engine_id, len(late), now_ms)
                self._forget_idle(engine_id)

    def _lease(self, engine_id: str, lease_id: str) -> _Lease | None:
        engine = self._engines.get(engine_id)
        return None if engine is None else engine.leases.get(lease_id)

    def _pop(self, engine_id: str, lease_id: str) -> None:
        if (engine := self._engines.get(engine_id)) is not None:
            engine.leases.pop(lease_id, None)
            self._forget_idle(engine_id)

    def _forget_idle(self, engine_id: str) -> None:
        engine = self._engines[engine_id]
        if not engine.leases and not engine.releases:
            del self._engines[engine_id]


def _due_ms(engine: _Engine) -> int:
    """When there is something to send to an engine that has leases or releases."""
    return 0 if engine.releases else min(lease.renew_at_ms for lease in engine.leases.values())


def _next_ms(engine: _Engine, is_connected: bool) -> int:
    deadlines = [lease.deadline_ms for lease in engine.leases.values()]
    return min([*deadlines, *engine.releases.values(), *([_due_ms(engine)] if is_connected else [])])
