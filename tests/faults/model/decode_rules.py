"""What D does: its engine and the reads of its ranks.

| step                  | the code |
|-----------------------|---------|
| refuses               | any answer that is not 200 before the read |
| notices a hang-up     | ``AsyncEngine.abort``, ``Scheduler.abort``, ``SequenceReads.cancel`` |
| cannot meet P         | ``Scheduler.connect_failed``, ``AgentLoop._peer_for`` |
| begins to read | ``Scheduler._admit``, ``SchedulerState.place``, ``SequenceReads.post``, ``AgentLoop._start_read`` |
| reads a piece         | ``BlockRead.step``, ``ReadMachine.next_post``, ``ReadMachine.arrived`` |
| compares versions     | ``BlockRead._compare``, ``fence.stale_positions``, ``AgentLoop._tell`` |
| loses P               | ``BlockRead._broke``; the other ranks go on: ``Gather.report``, ``SequenceReads.give_up`` |
| a cancelled part ends | ``ReadMachine`` (CANCELLING, DRAINED) |
| settles               | ``SequenceReads.settle``, ``SchedulerState.leave`` |

A part that is cancelled or given up may also go on to its end: the cancel is on its way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.faults.model.scope import Scope, Variant
from tests.faults.model.state import (
    BROKE,
    CANCELLED,
    EQUAL,
    FREE,
    NO_READ,
    UNEQUAL,
    Read,
    State,
    is_wanted,
    read_again,
    token,
    with_read,
)
from tests.faults.model.steps import progress

if TYPE_CHECKING:
    from tests.faults.model.steps import Moves


def decode_moves(scope: Scope, s: State) -> Moves:
    """All that the decode workers can do now."""
    for d, row in enumerate(s.reads):
        for a, read in enumerate(row):
            if read != NO_READ:
                yield from _engine_moves(scope, s, d, a)
                yield from _read_moves(scope, s, d, a)


def _engine_moves(scope: Scope, s: State, d: int, a: int) -> Moves:
    read = s.reads[d][a]
    if not is_wanted(scope, s, d, a) and read.state != "closing":
        after = with_read(s, d, a, _hung_up(scope, read))
        yield progress("D{} notices that nobody waits for attempt {}", d, a), after
    if read.state != "sent":
        return
    if s.sick >> d & 1:
        yield progress("D{} refuses attempt {}", d, a), with_read(s, d, a, NO_READ)
    elif s.attempts[a].p == "crashed":
        yield progress("D{} cannot meet the P of attempt {}", d, a), with_read(s, d, a, Read("failed"))
    elif sum(one.owns for one in s.reads[d]) < scope.seats:
        begun = Read("reading", True, ((0, True),) * scope.ranks)
        yield progress("D{} begins to read attempt {}", d, a), with_read(read_again(s, d, a), d, a, begun)


def _hung_up(scope: Scope, read: Read) -> Read:
    if read.state != "reading":
        return NO_READ
    return Read("closing", not scope.is_variant(Variant.REUSE_DURING_READ), read.parts)


def _read_moves(scope: Scope, s: State, d: int, a: int) -> Moves:
    read = s.reads[d][a]
    if read.state not in ("reading", "closing"):
        return
    if all(stage >= EQUAL for stage, _ in read.parts):
        yield progress("D{} settles its read of attempt {}", d, a), _settled(scope, s, d, a)
        return
    for rank, (stage, _) in enumerate(read.parts):
        if stage >= EQUAL:
            continue
        if s.attempts[a].p == "crashed":
            yield progress("D{} loses P while it reads attempt {} as rank {}", d, a, rank), _broken(s, d, a, rank)
            continue
        yield _gone_on(scope, s, d, a, rank)
        if read.state == "closing":
            after = with_read(s, d, a, _with_part(read, rank, CANCELLED, ok=True))
            yield progress("D{} ends the cancelled read of attempt {} as rank {}", d, a, rank), after


def _gone_on(scope: Scope, s: State, d: int, a: int, rank: int):
    read = s.reads[d][a]
    stage, ok = read.parts[rank]
    blocks = s.blocks[s.attempts[a].where]
    if stage < scope.blocks_per_request:
        ok = ok and any(block.data == token(a, stage) for block in blocks)
        after = with_read(s, d, a, _with_part(read, rank, stage + 1, ok=ok))
        return progress("D{} reads a piece of attempt {} as rank {}", d, a, rank), after
    promised = [token(a, index) for index in range(scope.blocks_per_request)]
    found = {block.version for block in blocks}
    equal = scope.is_variant(Variant.NO_FENCE) or all(version in found for version in promised)
    after = with_read(s, d, a, _with_part(read, rank, EQUAL if equal else UNEQUAL, ok=ok))
    if not equal and all(any(b.data == t and b.owner in (FREE, a) for b in blocks) for t in promised):
        after = after._replace(wrong="a read was refused although nobody had taken its blocks")
    after = after._replace(notes=tuple(sorted((*after.notes, (a, d, rank)))))
    return progress("D{} compares the versions of attempt {} as rank {}, and tells P", d, a, rank), after


def _broken(s: State, d: int, a: int, rank: int) -> State:
    read = _with_part(s.reads[d][a], rank, BROKE, ok=True)
    if any(stage < EQUAL for stage, _ in read.parts):
        read = read._replace(state="closing")
    return with_read(s, d, a, read)


def _with_part(read: Read, rank: int, stage: int, *, ok: bool) -> Read:
    return read._replace(parts=(*read.parts[:rank], (stage, ok), *read.parts[rank + 1 :]))


def _settled(scope: Scope, s: State, d: int, a: int) -> State:
    read = s.reads[d][a]
    ends = {stage for stage, _ in read.parts}
    if read.state == "closing" or BROKE in ends:
        return with_read(s, d, a, Read("failed") if is_wanted(scope, s, d, a) else NO_READ)
    if ends == {EQUAL} and not all(ok for _, ok in read.parts):
        s = s._replace(wrong="a read was accepted that holds something else than was promised")
    return with_read(s, d, a, Read("running", True))
