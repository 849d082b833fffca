"""Time that passes, and what can go wrong.

| step                         | what it stands for                                                              |
|------------------------------|---------------------------------------------------------------------------------|
| falls due                    | the deadline in the store passes; at any time, and a fault while it is renewed   |
| forgets                      | ``reap.lua`` (ZREMRANGEBYSCORE), ``common.lua`` (PEXPIREAT)                      |
| a late grant arrives         | a ``grant.lua`` that P has taken for failed                                     |
| the store is back            | with everything or with nothing                                                 |
| faults: crashes              | a process ends at once; it is back empty, as another engine                     |
| faults: the store            | unreachable for as long as it takes, emptied, an answer to P lost               |
| faults: the network          | a notification lost or doubled, an abort lost                                   |
| faults: slowness             | no answer of P or D in time, an abort call that times out, a read given up       |
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.faults.model.prefill_rules import granted, reaped
from tests.faults.model.router_rules import decode_left, is_renewed, prefill_left, sent
from tests.faults.model.scope import Scope
from tests.faults.model.state import (
    EQUAL,
    LIVE,
    NO_READ,
    OLD,
    PAST,
    PINNING,
    Block,
    Request,
    State,
    is_asked,
    is_wanted,
    with_attempt,
    with_read,
    with_request,
)
from tests.faults.model.steps import fault, progress, spent

if TYPE_CHECKING:
    from tests.faults.model.steps import Moves


def time_moves(scope: Scope, s: State) -> Moves:
    """What happens by itself."""
    for a, at in enumerate(s.attempts):
        if at.store == "held" and not at.due and not is_renewed(scope, s, a) and not is_asked(scope, s, a):
            yield progress("lease {} falls due", a), with_attempt(s, a, due=True)
        is_owned = at.p in (*PINNING, "telling", "withdrawn")
        if s.redis != "down" and not is_owned and (at.store == "releasing" or (at.store == "held" and at.due)):
            yield progress("the store forgets lease {}", a), with_attempt(s, a, store="unknown", due=False)
        if at.late:
            yield progress("a late grant of lease {} reaches the store", a), _late(s, a)
    if s.redis == "down":
        yield progress("the store is back"), s._replace(redis="back")
        yield progress("the store is back, empty"), _emptied(s)._replace(redis="back")


def _late(s: State, a: int) -> State:
    at = s.attempts[a]
    s = with_attempt(granted(s, a), a, late=False)
    # P does not own what only the late grant brought back; nobody renews it for long.
    return with_attempt(s, a, p="forgotten") if at.p == "gone" and at.store == "unknown" else s


def _emptied(s: State) -> State:
    return s._replace(attempts=tuple(at._replace(store="unknown", due=False) for at in s.attempts))


def fault_moves(scope: Scope, s: State) -> Moves:
    """What may go wrong once more."""
    if not s.faults_left:
        return
    s = spent(s)
    yield from _crashes(scope, s)
    yield from _store_faults(scope, s)
    yield from _network_faults(s)
    yield from _slowness(scope, s)


def _crashes(scope: Scope, s: State) -> Moves:
    for p in range(scope.prefill_workers):
        # Also what has ended there cannot be read any more.
        gone = {a for a, at in enumerate(s.attempts) if at.where == p and at.p not in ("none", "crashed")}
        if gone:
            attempts = tuple(at._replace(p="crashed") if a in gone else at for a, at in enumerate(s.attempts))
            blocks = (*s.blocks[:p], (Block(),) * scope.blocks, *s.blocks[p + 1 :])
            told = tuple(note for note in s.heard if note[0] not in gone)
            yield fault("P{} crashes", p), s._replace(attempts=attempts, blocks=blocks, heard=told)
    for d, row in enumerate(s.reads):
        if any(read != NO_READ for read in row):
            after = s._replace(reads=(*s.reads[:d], (NO_READ,) * scope.attempts, *s.reads[d + 1 :]))
            yield fault("D{} crashes", d), after
        if not s.sick >> d & 1:
            yield fault("D{} refuses all requests from now on", d), s._replace(sick=s.sick | 1 << d)
    if any(request.phase in LIVE for request in s.requests):
        yield fault("the router crashes"), _router_crashed(s)


def _router_crashed(s: State) -> State:
    for r, request in enumerate(s.requests):
        if request.phase in LIVE:
            s = with_request(s, r, Request("crashed", request.sent, ends=request.ends + 1))
    return s._replace(
        attempts=tuple(
            at._replace(tracked=False, releasing=False, answer="over" if at.answer == "flying" else at.answer)
            for at in s.attempts
        )
    )


def _store_faults(scope: Scope, s: State) -> Moves:
    if s.redis != "down":
        yield fault("the store cannot be reached"), s._replace(redis="down")
    emptied = _emptied(s)
    if emptied != s:
        yield fault("the store loses everything"), emptied
    if s.redis == "down":
        return
    for a, at in enumerate(s.attempts):
        if at.p == "granting" and not at.late:
            yield fault("the answer to the grant of lease {} is lost", a), granted(s, a)
            yield fault("the grant of lease {} is late", a), with_attempt(s, a, late=True)
        if at.p == "held" and (at.due or at.store == "releasing"):
            yield fault("the answer to the reap of lease {} is lost", a), reaped(s, a)
        if at.store == "held" and not at.due and (is_renewed(scope, s, a) or is_asked(scope, s, a)):
            yield fault("lease {} falls due before it is renewed", a), with_attempt(s, a, due=True)


def _network_faults(s: State) -> Moves:
    for note in dict.fromkeys(s.notes):
        a, d, rank = note
        left = list(s.notes)
        left.remove(note)
        lost = s._replace(notes=tuple(left))
        yield fault("a notification about lease {} from D{}, rank {}, is lost", a, d % OLD, rank), lost
        if s.notes.count(note) == 1:
            doubled = s._replace(notes=tuple(sorted((*s.notes, note))))
            yield fault("a notification about lease {} from D{}, rank {}, is doubled", a, d % OLD, rank), doubled
    for a, at in enumerate(s.attempts):
        if at.abort:
            yield fault("the abort of attempt {} is lost", a), with_attempt(s, a, abort=False)


def _slowness(scope: Scope, s: State) -> Moves:
    for r, request in enumerate(s.requests):
        a = r * scope.prefills + request.sent - 1
        if request.phase == "prefilling" and s.attempts[a].p not in PAST:
            yield fault("P is silent for too long with request {}", r), prefill_left(scope, s, r)
        elif request.phase == "reading" and s.reads[request.decode][a].state in ("sent", "reading", "running"):
            yield fault("D{} is silent for too long with request {}", request.decode, r), decode_left(scope, s, r)
        elif request.phase == "queued" and request.sent < scope.prefills:
            for p in {at.where for b, at in enumerate(s.attempts) if at.abort and b // scope.prefills == r}:
                after = sent(scope, s, r, p)
                yield fault("the abort call of request {} times out, and it goes to P{} again", r, p), after
    for d, row in enumerate(s.reads):
        for a, read in enumerate(row):
            unended = any(stage < EQUAL for stage, _ in read.parts)
            if read.state == "reading" and unended and is_wanted(scope, s, d, a):
                after = with_read(s, d, a, read._replace(state="closing"))
                yield fault("D{} gives up its read of attempt {}", d, a), after
