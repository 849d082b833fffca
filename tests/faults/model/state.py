"""One state of the whole system, as nested tuples, and its canonical form.

What is left out on purpose, and why nothing is lost by it
- A version is named after what was promised with it: ``a * 8 + i`` is the i-th block of attempt a, -1 any version
  that nobody was promised. The same for a block's data. So versions need no counter, and blocks no number: the blocks
  of a P are a sorted tuple (first symmetry). The fence compares them with one number instead, which says the same: a
  block's version is above the promise once the block is taken again, and not before (``BlockPool``).
- The decode workers are alike: of the states that differ by their order only the smallest is kept (second symmetry).
- A piece of a read is one step. A real one takes time, but what it brings is right only if the block was right at its
  end, because an overwritten block never becomes right again.
- D's answers have no message of their own: the router looks at D's sequence, now or after any other step, which is what
  a delay is. Its sequence being gone is the broken connection. A hang-up is noticed in the same way.
- An attempt that nobody can come back to is emptied, and its promises are forgotten.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tests.faults.model.scope import Scope

LIVE = ("queued", "prefilling", "held", "reading", "decoding")
#: A lease of P in these has its blocks pinned (``core.leases.holder_state.PINNING``).
PINNING = ("granting", "held")
OWNING = ("allocated", *PINNING)
#: Nothing will happen to it on P any more.
PAST = ("none", "gone", "forgotten", "crashed")

OLD = 2
FREE, BACKGROUND = -1, -2
BLANK = -1

#: How a rank's part of a read has ended; smaller numbers are the pieces that have arrived.
EQUAL, UNEQUAL, BROKE, CANCELLED = 100, 101, 102, 103


class Request(NamedTuple):
    """``router.request.exchange.Exchange``; the phases are ``router.request.states.State`` and ``broken`` (after its
    first byte).
    """

    phase: str = "queued"
    #: Prefills sent.
    sent: int = 0
    decode: int = -1
    #: Bits of the decode workers that failed it.
    failed: int = 0
    decodes: int = 0
    failed_reads: int = 0
    lost: bool = False
    ends: int = 0


class Attempt(NamedTuple):
    """One prefill and its lease, everywhere: on P, on its way to the router, in the router's book, in the store."""

    #: none, sent, allocated, then ``core.leases.holder_state`` (granting, held, telling, withdrawn), then one of PAST.
    p: str = "none"
    where: int = 0
    #: P's answer: none yet, flying, over.
    answer: str = "none"
    #: unknown, held, releasing, done, released, expired.
    store: str = "unknown"
    #: Its deadline in the store has passed.
    due: bool = False
    #: In ``core.leases.renewal.TrackedLeases``: renewed; release not sent yet.
    tracked: bool = False
    releasing: bool = False
    #: ``/internal/abort`` is on its way to P.
    abort: bool = False
    #: A grant that P has given up waiting for is on its way to the store.
    late: bool = False


class Read(NamedTuple):
    """A sequence on D. none, sent, reading, closing, failed, running."""

    state: str = "none"
    #: It has blocks on D.
    owns: bool = False
    #: For each rank of D: pieces arrived or how it ended, and whether all that arrived was right.
    parts: tuple[tuple[int, bool], ...] = ()


class Block(NamedTuple):
    """A block of P."""

    #: An attempt, FREE, or BACKGROUND: other traffic.
    owner: int = FREE
    version: int = BLANK
    data: int = BLANK


class State(NamedTuple):
    """Everything."""

    requests: tuple[Request, ...]
    attempts: tuple[Attempt, ...]
    #: By decode worker and attempt.
    reads: tuple[tuple[Read, ...], ...]
    blocks: tuple[tuple[Block, ...], ...]
    #: Notifications on their way, and those that P has counted: attempt, reader, rank. The reader is the decode worker,
    #: plus OLD if it has begun another read of the attempt since.
    notes: tuple[tuple[int, int, int], ...] = ()
    heard: tuple[tuple[int, int, int], ...] = ()
    #: up, down, back (has been down).
    redis: str = "up"
    #: Bits of the decode workers that refuse every request.
    sick: int = 0
    faults_left: int = 0
    #: What a step itself found wrong.
    wrong: str = ""


NO_ATTEMPT, NO_READ = Attempt(), Read()


def first_state(scope: Scope) -> State:
    """Nothing has happened."""
    return State(
        requests=(Request(),) * scope.requests,
        attempts=(NO_ATTEMPT,) * scope.attempts,
        reads=((NO_READ,) * scope.attempts,) * scope.decode_workers,
        blocks=((Block(),) * scope.blocks,) * scope.prefill_workers,
        faults_left=scope.faults,
    )


def token(attempt: int, index: int) -> int:
    """The name of what a block of an attempt holds, and of its version."""
    return attempt * 8 + index


def current(scope: Scope, s: State, r: int) -> int:
    """The attempt that the router is at, -1 before the first."""
    sent = s.requests[r].sent
    return r * scope.prefills + sent - 1 if sent else -1


def is_asked(scope: Scope, s: State, a: int) -> bool:
    """The router waits for P's answer: the connection is open."""
    r = a // scope.prefills
    return s.requests[r].phase == "prefilling" and current(scope, s, r) == a


def is_wanted(scope: Scope, s: State, d: int, a: int) -> bool:
    """The router waits for D, or relays it."""
    r = a // scope.prefills
    request = s.requests[r]
    return request.phase in ("reading", "decoding") and request.decode == d and current(scope, s, r) == a


def with_request(s: State, r: int, request: Request) -> State:
    return s._replace(requests=(*s.requests[:r], request, *s.requests[r + 1 :]))


def with_attempt(s: State, a: int, **changes: object) -> State:
    changed = s.attempts[a]._replace(**changes)
    return s._replace(attempts=(*s.attempts[:a], changed, *s.attempts[a + 1 :]))


def with_read(s: State, d: int, a: int, read: Read) -> State:
    row = s.reads[d]
    row = (*row[:a], read, *row[a + 1 :])
    return s._replace(reads=(*s.reads[:d], row, *s.reads[d + 1 :]))


def with_blocks(s: State, p: int, blocks: Iterable[Block]) -> State:
    return s._replace(blocks=(*s.blocks[:p], tuple(sorted(blocks)), *s.blocks[p + 1 :]))


def read_again(s: State, d: int, a: int) -> State:
    """D's next read of the same attempt has a reader name of its own: what the one before has told is another's."""
    notes = _renamed(s.notes, d, a)
    heard = _renamed(s.heard, d, a)
    return s if (notes, heard) == (s.notes, s.heard) else s._replace(notes=notes, heard=heard)


def _renamed(notes: tuple[tuple[int, int, int], ...], d: int, a: int) -> tuple[tuple[int, int, int], ...]:
    if not any(note[:2] == (a, d) for note in notes):
        return notes
    kept = [note for note in notes if note[:2] not in ((a, d), (a, d + OLD))]
    return tuple(sorted(kept + [(a, d + OLD, note[2]) for note in notes if note[:2] == (a, d)]))


def canonical(scope: Scope, s: State) -> State:
    """The same state with what is over emptied, and the decode workers in the smallest order."""
    for a, at in enumerate(s.attempts):
        if at != NO_ATTEMPT:
            s = _tidied(scope, s, a)
    if s.sick and not any(request.phase in LIVE[:4] for request in s.requests):
        s = s._replace(sick=0)
    if scope.decode_workers == 2:
        swapped = _swapped(s)
        if swapped < s:
            return swapped
    return s


def _tidied(scope: Scope, s: State, a: int) -> State:
    """Without differences of one attempt that make no difference any more."""
    at = s.attempts[a]
    if at.p not in OWNING:
        s = _without_notes(s, a)
        if at.answer == "none" and at.p != "sent":
            s = with_attempt(s, a, answer="over")
    if at.store == "held" and not at.due and not at.tracked and not is_asked(scope, s, a) and at.p != "gone":
        # It may fall due at any time, and when it has, P may still take its time.
        s = with_attempt(s, a, due=True)
    if at.abort and at.p == "crashed":
        s = with_attempt(s, a, abort=False)
    for d, row in enumerate(s.reads):
        if row[a].state == "failed" and not is_wanted(scope, s, d, a):
            s = with_read(s, d, a, NO_READ)
    return _emptied(scope, s, a)


def _emptied(scope: Scope, s: State, a: int) -> State:
    """Nobody can come back to it: what the store still knows of it, only the store's own time ends."""
    at = s.attempts[a]
    is_freed_too_early = at.p == "gone" and at.store == "held" and not at.due
    if at.p not in PAST or is_freed_too_early or at.tracked or at.releasing or at.abort or at.late:
        return s
    if _is_at(scope, s, a) or any(row[a] != NO_READ for row in s.reads):
        return s
    return _without_tokens(s._replace(attempts=(*s.attempts[:a], NO_ATTEMPT, *s.attempts[a + 1 :])), a)


def _is_at(scope: Scope, s: State, a: int) -> bool:
    r = a // scope.prefills
    return s.requests[r].phase in LIVE[1:] and current(scope, s, r) == a


def _without_tokens(s: State, a: int) -> State:
    """Nobody will compare or read what this attempt was promised."""
    tokens = range(token(a, 0), token(a + 1, 0))
    for p, blocks in enumerate(s.blocks):
        if any(block.version in tokens or block.data in tokens for block in blocks):
            s = with_blocks(s, p, [_blanked(block, tokens) for block in blocks])
    return s


def _without_notes(s: State, a: int) -> State:
    """P has nothing left that a notification could end."""
    if not s.notes and not s.heard:
        return s
    notes = tuple(note for note in s.notes if note[0] != a)
    heard = tuple(note for note in s.heard if note[0] != a)
    return s if (notes, heard) == (s.notes, s.heard) else s._replace(notes=notes, heard=heard)


def _blanked(block: Block, tokens: range) -> Block:
    version = BLANK if block.version in tokens else block.version
    return Block(block.owner, version, BLANK if block.data in tokens else block.data)


def _swapped(s: State) -> State:
    requests = tuple(
        request
        if request.decode < 0 and not request.failed
        else request._replace(decode=_other(request.decode), failed=_swap_bits(request.failed))
        for request in s.requests
    )
    return s._replace(
        requests=requests,
        reads=(s.reads[1], s.reads[0]),
        notes=tuple(sorted((a, d ^ 1, rank) for a, d, rank in s.notes)),
        heard=tuple(sorted((a, d ^ 1, rank) for a, d, rank in s.heard)),
        sick=_swap_bits(s.sick),
    )


def _other(d: int) -> int:
    return d if d < 0 else 1 - d


def _swap_bits(mask: int) -> int:
    return (mask & 1) << 1 | mask >> 1
