"""What has to hold in every state, and when nothing is left to do."""

from __future__ import annotations

from tests.faults.model.scope import Scope
from tests.faults.model.state import BACKGROUND, EQUAL, FREE, LIVE, NO_READ, OWNING, Block, State, current


def broken(scope: Scope, s: State) -> str:
    """What is wrong in this state; empty when nothing is."""
    return s.wrong or _blocks(scope, s) or _decode(scope, s) or _leases(scope, s) or _requests(scope, s)


def unclean(s: State) -> str:
    """What is left in a state in which nothing happens any more; empty when nothing is."""
    if any(request.phase in LIVE for request in s.requests):
        return "a request never ends"
    if any(block.owner != FREE for blocks in s.blocks for block in blocks):
        return "blocks of P are pinned for ever"
    if any(read != NO_READ for row in s.reads for read in row):
        return "blocks of D are kept for ever"
    if any(at.tracked or at.releasing for at in s.attempts):
        return "the router renews or releases a lease for ever"
    if any(at.store in ("held", "releasing") for at in s.attempts):
        return "the store holds a lease for ever"
    return ""


def _blocks(scope: Scope, s: State) -> str:
    for blocks in s.blocks:
        for block in blocks:
            if block.owner not in (FREE, BACKGROUND) and s.attempts[block.owner].p not in OWNING:
                return f"a block of P is pinned, but attempt {block.owner} does not own it"
    for a, at in enumerate(s.attempts):
        if at.p in OWNING and _count(s.blocks[at.where], a) != scope.blocks_per_request:
            return f"attempt {a} has lost blocks that it owns"
    return ""


def _count(blocks: tuple[Block, ...], a: int) -> int:
    return sum(block.owner == a for block in blocks)


def _decode(scope: Scope, s: State) -> str:
    for d, row in enumerate(s.reads):
        taken = sum(read.owns for read in row)
        writing = sum(not read.owns and any(stage < EQUAL for stage, _ in read.parts) for read in row)
        if writing and taken + writing > scope.seats:
            return f"D{d} has given away blocks that a read may still write"
    return ""


def _leases(scope: Scope, s: State) -> str:
    for a, at in enumerate(s.attempts):
        if at.p == "gone" and at.store == "held" and not at.due:
            return f"P has freed the blocks of lease {a}, which the store holds until later"
        if not at.tracked:
            continue
        if at.store == "expired" and s.faults_left == scope.faults:
            return f"lease {a} has expired while the router wanted it, and nothing had gone wrong"
        r = a // scope.prefills
        if s.requests[r].phase not in ("held", "reading") or current(scope, s, r) != a:
            return f"the router renews lease {a}, which no request owns"
    return ""


def _requests(scope: Scope, s: State) -> str:
    can_retry = scope.decode_workers > 1 and scope.prefills > 1
    for r, request in enumerate(s.requests):
        if request.ends != (request.phase not in LIVE):
            return f"request {r} is {request.phase} and has ended {request.ends} times"
        if request.phase == "failed" and can_retry and scope.faults - s.faults_left < 2 and s.redis == "up":
            return f"request {r} failed although one fault leaves somebody who could serve it"
    return ""
