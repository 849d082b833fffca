"""What P does: its engine, its lease keeper, its ear for notifications.

| step                       | the code |
|----------------------------|---------|
| takes blocks | ``SchedulerState.place``, ``BlockPool._take`` (version), ``VersionTable.store`` on the rank |
| computes, pins | ``Runner._forward``; ``SchedulerState.hand_off``, ``BlockPool.lease``, ``LeaseHolder.grant`` |
| grants in the store        | ``LeaseKeeper._do``, ``grant.lua``, ``LeaseHolder.granted`` |
| answers                    | ``Serving._hand_off``, whether or not the store has heard of the lease |
| notices a hang-up          | ``Serving._held``, ``Serving._only``, ``AsyncEngine._abandon`` |
| hears of an abort          | ``POST /internal/abort``: ``AsyncEngine.abort``, ``EngineLeases.drop_request`` |
| hears that it was read     | ``ReadNotices._count``, ``AsyncEngine.note_read``, ``LeaseHolder.done`` |
| tells the store            | ``LeaseHolder.take_work`` (done, release), ``reap.lua``, ``release.lua`` |
| asks the store             | ``LeaseHolder.take_work`` (reap), ``reap.lua``, ``LeaseHolder._answer`` |
| gives up                   | ``LeaseHolder.failed`` past the grace, ``LeaseHolder.give_up_oldest`` |
| other traffic takes/writes | ``BlockPool.allocate`` under pressure, ``Runner.execute`` |
"""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

from tests.faults.model.scope import Scope, Variant
from tests.faults.model.state import (
    BACKGROUND,
    BLANK,
    EQUAL,
    FREE,
    OLD,
    OWNING,
    PINNING,
    Block,
    State,
    is_asked,
    token,
    with_attempt,
    with_blocks,
)
from tests.faults.model.steps import others, progress

if TYPE_CHECKING:
    from tests.faults.model.steps import Moves


def prefill_moves(scope: Scope, s: State) -> Moves:
    """All that the prefill workers can do now."""
    for a, at in enumerate(s.attempts):
        if at.p != "none":
            yield from _engine_moves(scope, s, a)
            yield from _store_moves(scope, s, a)
    yield from _heard_moves(scope, s)
    for p in range(scope.prefill_workers):
        yield from _background_moves(scope, s, p)


def _engine_moves(scope: Scope, s: State, a: int) -> Moves:
    at, asked = s.attempts[a], is_asked(scope, s, a)
    if at.p == "sent":
        for after in _placed(scope, _replaced(scope, s, a), a):
            yield progress("P{} takes blocks for attempt {}", at.where, a), after
    elif at.p == "allocated":
        yield progress("P{} computes attempt {} and pins its blocks", at.where, a), _computed(scope, s, a)
    elif at.answer == "none" and at.p in PINNING:
        after = with_attempt(s, a, answer="flying" if asked else "over")
        yield progress("P{} answers with lease {}", at.where, a), after
    if not asked and at.answer == "none" and at.p in ("sent", *OWNING):
        yield progress("P{} notices that nobody waits for attempt {}", at.where, a), dropped(scope, s, a)
    if at.abort:
        after = with_attempt(s, a, abort=False)
        for one in range(a - a % scope.prefills, a - a % scope.prefills + scope.prefills):
            if after.attempts[one].p in OWNING and after.attempts[one].where == at.where:
                after = dropped(scope, after, one)
        yield progress("P{} is told to abort the request of attempt {}", at.where, a), after


def _replaced(scope: Scope, s: State, a: int) -> State:
    """``Scheduler.add``, ``Serving.answer``: what P has of the same request, asked before, goes."""
    for one in range(a - a % scope.prefills, a):
        if s.attempts[one].where == s.attempts[a].where and s.attempts[one].p in ("sent", *OWNING):
            s = dropped(scope, s, one)
    return s


def _store_moves(scope: Scope, s: State, a: int) -> Moves:
    at = s.attempts[a]
    if s.redis == "down":
        if at.p in PINNING:
            yield (
                progress("P{} gives up lease {}: the store is silent for too long", at.where, a),
                dropped(scope, s, a),
            )
        elif at.p in ("telling", "withdrawn"):
            after = with_attempt(s, a, p="forgotten")
            yield progress("P{} stops trying to tell of lease {}", at.where, a), after
        return
    if at.p == "granting":
        yield progress("P{} grants lease {} in the store", at.where, a), with_attempt(granted(s, a), a, p="held")
    elif at.p == "telling":
        after = with_attempt(s, a, p="gone", due=False, store=_ended(at.store, "done"))
        yield progress("P{} tells the store that lease {} was read", at.where, a), after
    elif at.p == "withdrawn":
        after = with_attempt(s, a, p="gone", due=False, store=_ended(at.store, "released"))
        yield progress("P{} releases and reaps lease {}", at.where, a), after
    elif at.p == "held":
        yield from _reap_moves(scope, s, a)


def _reap_moves(scope: Scope, s: State, a: int) -> Moves:
    at = s.attempts[a]
    if at.store == "unknown":
        yield progress("P{} asks, the store lost lease {}", at.where, a), with_attempt(s, a, p="granting")
    elif at.store != "held" or at.due:
        after = with_attempt(released(scope, reaped(s, a), a), a, p="gone")
        yield progress("P{} reaps lease {} and frees its blocks", at.where, a), after
    elif scope.is_variant(Variant.FREE_BEFORE_REAP):
        after = with_attempt(released(scope, s, a), a, p="gone")
        yield progress("P{} frees the blocks of lease {} at its own deadline, unasked", at.where, a), after


def reaped(s: State, a: int) -> State:
    """``reap.lua`` for one lease that is asked about."""
    at = s.attempts[a]
    outcome = {"held": "expired" if at.due else "held", "releasing": "released"}.get(at.store, at.store)
    return with_attempt(s, a, store=outcome, due=False)


def granted(s: State, a: int) -> State:
    """``grant.lua`` for one lease."""
    at = s.attempts[a]
    return with_attempt(s, a, store="held", due=False) if at.store in ("unknown", "held") else s


def dropped(scope: Scope, s: State, a: int) -> State:
    """``EngineLeases.drop``, ``AsyncEngine.abort``: what P has of an attempt goes, the store is told later."""
    at = s.attempts[a]
    if at.p in PINNING:
        return with_attempt(released(scope, s, a), a, p="withdrawn")
    if at.p == "allocated":
        # Nobody was promised anything, so these versions and what was half written are nobody's.
        rest = [Block() if block.owner == a else block for block in s.blocks[at.where]]
        s = with_blocks(s, at.where, rest)
    return with_attempt(s, a, p="gone")


def released(scope: Scope, s: State, a: int) -> State:
    """``BlockPool.end_lease``: the blocks are free and keep data and versions."""
    where = s.attempts[a].where
    bumped = scope.is_variant(Variant.BUMP_AT_RELEASE)
    return with_blocks(
        s,
        where,
        [
            Block(FREE, BLANK if bumped else block.version, block.data) if block.owner == a else block
            for block in s.blocks[where]
        ],
    )


def _ended(store: str, outcome: str) -> str:
    """An outcome is never replaced: ``SET ... NX``."""
    return outcome if store in ("unknown", "held", "releasing") else store


def _placed(scope: Scope, s: State, a: int) -> list[State]:
    """Every way to take the blocks; the real pool takes those that were given back first."""
    p, need = s.attempts[a].where, scope.blocks_per_request
    blocks = s.blocks[p]
    free = [i for i, block in enumerate(blocks) if block.owner == FREE]
    after = {}
    for taken in combinations(free, need):
        rest = list(blocks)
        for index, i in enumerate(taken):
            rest[i] = _taken(scope, blocks[i], a, token(a, index))
        after[tuple(blocks[i] for i in taken)] = with_attempt(with_blocks(s, p, rest), a, p="allocated")
    return list(after.values())


def _taken(scope: Scope, block: Block, owner: int, version: int) -> Block:
    if scope.is_variant(Variant.BUMP_AFTER_WRITE):
        return Block(owner, block.version, BLANK)
    return Block(owner, version, block.data)


def _computed(scope: Scope, s: State, a: int) -> State:
    where, index = s.attempts[a].where, 0
    blocks = list(s.blocks[where])
    for i, block in enumerate(blocks):
        if block.owner == a:
            blocks[i] = Block(a, token(a, index), token(a, index))
            index += 1
    return with_attempt(with_blocks(s, where, blocks), a, p="granting")


def _heard_moves(scope: Scope, s: State) -> Moves:
    for note in dict.fromkeys(s.notes):
        left = list(s.notes)
        left.remove(note)
        after = heard(scope, s._replace(notes=tuple(left)), note)
        yield progress("P hears that lease {} was read by D{} as rank {}", note[0], note[1] % OLD, note[2]), after


def heard(scope: Scope, s: State, note: tuple[int, int, int]) -> State:
    """``Notices._count``: the lease ends when all ranks of one reader have told."""
    a, d, _ = note
    if s.attempts[a].p not in PINNING:
        return s  # ``late_done``
    counted = [*s.heard, note]
    if not scope.is_variant(Variant.COUNT_TWICE):
        counted = list(dict.fromkeys(counted))
    if sum(one[:2] == (a, d) for one in counted) < scope.ranks:
        return s._replace(heard=tuple(sorted(counted)))
    if d < OLD and any(stage < EQUAL for stage, _ in s.reads[d][a].parts):
        s = s._replace(wrong="a lease ended as read while a rank of its reader still reads")
    s = s._replace(heard=tuple(one for one in counted if one[0] != a))
    return with_attempt(released(scope, s, a), a, p="telling")


def _background_moves(scope: Scope, s: State, p: int) -> Moves:
    """Other requests of this P take a block that still holds what somebody was promised, one at a time."""
    blocks = s.blocks[p]
    for i, block in enumerate(blocks):
        if block.owner == BACKGROUND:
            after = with_blocks(s, p, [*blocks[:i], Block(), *blocks[i + 1 :]])
            yield progress("other traffic on P{} writes block of {} and gives it back", p, block.data), after
            return
    for block in dict.fromkeys(blocks):
        if block.owner == FREE and (block.version != BLANK or block.data != BLANK):
            rest = list(blocks)
            rest.remove(block)
            version = block.version if scope.is_variant(Variant.BUMP_AFTER_WRITE) else BLANK
            data = BLANK if scope.is_variant(Variant.BUMP_AFTER_WRITE) else block.data
            after = with_blocks(s, p, [*rest, Block(BACKGROUND, version, data)])
            yield others("other traffic on P{} takes the block of {}", p, block.data), after
