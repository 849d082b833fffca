"""What the router, its client and its renewal thread do.

| step                | the code |
|---------------------|---------|
| sends to P          | ``PrefillAttempt.find``, ``Waiting.for_room`` (no abort of ours under way) |
| takes over          | ``PrefillAttempt.ask``, ``LeaseClient.track`` |
| sees P fail         | ``Judge.failed``, ``Runner._apply``, ``Held.vacate``, ``PrefillAborts.start`` |
| sends to D          | ``DecodeAttempt.find``, ``placement.available`` |
| gets D's first byte | ``DecodeAttempt.ask`` |
| sees D fail         | ``Judge.failed``: DECODE_AGAIN, PREFILL_AGAIN or the error (``failure_table``) |
| prefills again      | ``Runner._apply``, ``Exchange.lease_over`` |
| finishes, exits     | ``Exit.settle``, ``Held.drop_lease`` |
| renews              | ``LeaseClient._ask``, ``renew.lua``, ``TrackedLeases.answered`` |
| loses               | ``TrackedLeases.answered`` (unknown for long), ``TrackedLeases.failed`` (past the grace) |
| sends a release     | ``TrackedLeases.take_work``, ``release.lua``; it stops trying after a whole duration |
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.faults.model.scope import Scope, Variant
from tests.faults.model.state import (
    LIVE,
    NO_READ,
    PAST,
    PINNING,
    Attempt,
    Read,
    Request,
    State,
    current,
    with_attempt,
    with_read,
    with_request,
)
from tests.faults.model.steps import others, progress

if TYPE_CHECKING:
    from tests.faults.model.steps import Moves

#: ``attempts.MAX_FAILED_READS``.
MAX_FAILED_READS = 2


def router_moves(scope: Scope, s: State) -> Moves:
    """All that the router can do now."""
    for r, request in enumerate(s.requests):
        if request.phase in LIVE:
            yield from _MOVES[request.phase](scope, s, r)
            yield others("the client of request {} leaves", r), left(scope, s, r)
    for a, at in enumerate(s.attempts):
        if at.tracked or at.releasing:
            yield from _lease_moves(scope, s, a)


def _queued(scope: Scope, s: State, r: int) -> Moves:
    request = s.requests[r]
    if request.sent == scope.prefills:
        yield progress("request {} has no prefill left", r), exited(scope, s, r, "failed")
        return
    aborting = {at.where for a, at in enumerate(s.attempts) if at.abort and a // scope.prefills == r}
    for p in range(scope.prefill_workers):
        if p not in aborting:
            yield progress("the router sends request {} to P{}", r, p), sent(scope, s, r, p)


def sent(scope: Scope, s: State, r: int, p: int) -> State:
    """The next attempt is on its way to this P."""
    request = s.requests[r]
    s = with_request(s, r, Request("prefilling", request.sent + 1))
    return s._replace(
        attempts=tuple(
            Attempt("sent", p) if a == r * scope.prefills + request.sent else at for a, at in enumerate(s.attempts)
        )
    )


def _prefilling(scope: Scope, s: State, r: int) -> Moves:
    a = current(scope, s, r)
    at = s.attempts[a]
    if at.answer == "flying":
        after = with_attempt(s, a, answer="over", tracked=True)
        after = with_request(after, r, s.requests[r]._replace(phase="held"))
        yield progress("the router has P{}'s answer with lease {}", at.where, a), after
    elif at.p in PAST or at.p in ("telling", "withdrawn"):
        yield progress("the router sees P{} fail attempt {}", at.where, a), prefill_left(scope, s, r)


def prefill_left(scope: Scope, s: State, r: int) -> State:
    """P has failed or was silent for too long: it is told to abort, and the request waits for another P."""
    a = current(scope, s, r)
    s = with_attempt(s, a, abort=s.attempts[a].p != "crashed", answer="over")
    return with_request(s, r, Request("queued", s.requests[r].sent))


def _held(scope: Scope, s: State, r: int) -> Moves:
    request, a = s.requests[r], current(scope, s, r)
    if request.lost:
        yield progress("request {} has lost lease {} and starts again", r, a), _again(s, r, a)
        return
    everybody = range(scope.decode_workers)
    good = [d for d in everybody if not request.failed >> d & 1] or everybody
    for d in good:
        # What it has of the older one is replaced; a read that has not ended would go on beside, which is left out.
        if s.reads[d][a].state not in ("reading", "closing"):
            after = with_read(s, d, a, Read("sent"))
            after = with_request(after, r, request._replace(phase="reading", decode=d))
            yield progress("the router sends request {} to D{}", r, d), after


def _again(s: State, r: int, a: int) -> State:
    return with_request(dropped_lease(s, a), r, Request("queued", s.requests[r].sent))


def dropped_lease(s: State, a: int) -> State:
    """``Exchange.drop_lease``: renewed no longer, released as soon as the store can be told."""
    return with_attempt(s, a, tracked=False, releasing=True)


def _reading(scope: Scope, s: State, r: int) -> Moves:
    request, a = s.requests[r], current(scope, s, r)
    read = s.reads[request.decode][a]
    if read.state == "running":
        after = with_request(with_attempt(s, a, tracked=False), r, request._replace(phase="decoding", lost=False))
        yield progress("the router has the first byte of request {} from D{}", r, request.decode), after
    elif read.state in ("none", "closing", "failed"):
        after = decode_left(scope, s, r)
        yield progress("the router sees D{} fail request {}", request.decode, r), after


def decode_left(scope: Scope, s: State, r: int) -> State:
    """D has failed before its first byte, or was silent for too long."""
    request, a = s.requests[r], current(scope, s, r)
    read = s.reads[request.decode][a]
    failed = request.failed if scope.is_variant(Variant.RETRY_SAME) else request.failed | 1 << request.decode
    decodes, failed_reads = request.decodes + 1, request.failed_reads + (read.state in ("closing", "failed"))
    if read.state == "failed":
        s = with_read(s, request.decode, a, NO_READ)
    if decodes >= scope.decodes:
        return exited(scope, s, r, "failed")
    if failed_reads >= MAX_FAILED_READS or request.lost:
        return _again(s, r, a)
    return with_request(s, r, Request("held", request.sent, -1, failed, decodes, failed_reads, request.lost))


def _decoding(scope: Scope, s: State, r: int) -> Moves:
    request, a = s.requests[r], current(scope, s, r)
    if s.reads[request.decode][a].state == "running":
        after = exited(scope, with_read(s, request.decode, a, NO_READ), r, "done")
        yield progress("D{} finishes request {}", request.decode, r), after
    else:
        yield progress("D{} died in the stream of request {}", request.decode, r), exited(scope, s, r, "broken")


_MOVES = {"queued": _queued, "prefilling": _prefilling, "held": _held, "reading": _reading, "decoding": _decoding}


def exited(scope: Scope, s: State, r: int, phase: str) -> State:
    """``exit.settle``: the one way out."""
    request, a = s.requests[r], current(scope, s, r)
    if request.phase == "prefilling":
        s = with_attempt(s, a, abort=s.attempts[a].p != "crashed", answer="over")
    elif request.phase in ("held", "reading"):
        s = dropped_lease(s, a)
    return _over(s, r, phase)


def _over(s: State, r: int, phase: str) -> State:
    request = s.requests[r]
    return with_request(s, r, Request(phase, request.sent, ends=request.ends + 1))


def left(scope: Scope, s: State, r: int) -> State:
    """The client has gone: ``Exchange.stop``, which cancels the task, and then the exit."""
    if scope.is_variant(Variant.EXIT_WITHOUT_RELEASE):
        return _over(s, r, "aborted")
    return exited(scope, s, r, "aborted")


def _lease_moves(scope: Scope, s: State, a: int) -> Moves:
    at, r = s.attempts[a], a // scope.prefills
    if s.redis == "down":
        if at.tracked:
            yield progress("the router loses lease {}: the store is silent for too long", a), _lost(scope, s, a)
        if at.releasing:
            after = with_attempt(s, a, releasing=False)
            yield progress("the router stops trying to release lease {}", a), after
        return
    if at.releasing:
        store = {"held": "releasing", "unknown": "released"}.get(at.store, at.store)
        after = with_attempt(s, a, releasing=False, store=store, due=at.due and store == "held")
        yield progress("the router releases lease {} of request {}", a, r), after
    elif at.store == "held":
        if at.due and is_renewed(scope, s, a):
            yield progress("the router renews lease {}", a), with_attempt(s, a, due=False)
    elif at.store != "unknown":
        yield progress("the router hears that lease {} is over", a), _lost(scope, s, a)
    elif at.p not in PINNING and not at.late:
        yield progress("the router loses lease {}: the store does not know it", a), _lost(scope, s, a)


def is_renewed(scope: Scope, s: State, a: int) -> bool:
    """The router keeps this lease alive."""
    at = s.attempts[a]
    if not scope.is_variant(Variant.RENEW_ONE_ENGINE):
        return at.tracked
    return at.tracked and not any(other.tracked and other.where < at.where for other in s.attempts)


def _lost(scope: Scope, s: State, a: int) -> State:
    """``TrackedLeases._end`` and ``Exchange.lease_over``, which also hears of leases that were read."""
    r = a // scope.prefills
    s = with_attempt(s, a, tracked=False)
    request = s.requests[r]
    if request.phase in ("held", "reading") and current(scope, s, r) == a:
        return with_request(s, r, request._replace(lost=True))
    return s
