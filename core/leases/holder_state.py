"""The states of a lease on P, as a table.

            | confirmed  kept   unsure     ended    done      drop        give_up     settled
  granting  | held       -      -          -        telling   withdrawn   withdrawn   -
  held      | -          held   granting   (gone)   telling   withdrawn   withdrawn   -
  telling   | -          -      -          -        -         -           -           (gone)
  withdrawn | -          -      -          -        -         -           -           (gone)

*granting*: the store does not know the lease yet, or no longer. *telling*: D has read the blocks. *withdrawn*: P ended
the lease. In the last two states the blocks are free already, and only the store has to be notified. If the store's
answer is about a lease that has ended here meanwhile, it causes no event. "(gone)": the lease is forgotten. "-":
NotHeldError is raised and nothing changes.
"""

from __future__ import annotations

from enum import StrEnum


class HolderError(Exception):
    """The caller's mistake; nothing was changed."""


class DuplicateLeaseError(HolderError):
    """The lease was granted before."""


class NotHeldError(HolderError):
    """There is no such lease, or it has ended already."""


class HolderState(StrEnum):
    GRANTING = "granting"
    HELD = "held"
    TELLING = "telling"
    WITHDRAWN = "withdrawn"


class HolderEvent(StrEnum):
    CONFIRMED = "confirmed"
    KEPT = "kept"
    UNSURE = "unsure"
    ENDED = "ended"
    DONE = "done"
    DROP = "drop"
    GIVE_UP = "give_up"
    SETTLED = "settled"


#: None: the lease is forgotten.
NEXT: dict[tuple[HolderState, HolderEvent], HolderState | None] = {
    (HolderState.GRANTING, HolderEvent.CONFIRMED): HolderState.HELD,
    (HolderState.GRANTING, HolderEvent.DONE): HolderState.TELLING,
    (HolderState.GRANTING, HolderEvent.DROP): HolderState.WITHDRAWN,
    (HolderState.GRANTING, HolderEvent.GIVE_UP): HolderState.WITHDRAWN,
    (HolderState.HELD, HolderEvent.KEPT): HolderState.HELD,
    (HolderState.HELD, HolderEvent.UNSURE): HolderState.GRANTING,
    (HolderState.HELD, HolderEvent.ENDED): None,
    (HolderState.HELD, HolderEvent.DONE): HolderState.TELLING,
    (HolderState.HELD, HolderEvent.DROP): HolderState.WITHDRAWN,
    (HolderState.HELD, HolderEvent.GIVE_UP): HolderState.WITHDRAWN,
    (HolderState.TELLING, HolderEvent.SETTLED): None,
    (HolderState.WITHDRAWN, HolderEvent.SETTLED): None,
}

#: The states in which P's blocks are pinned.
PINNING = (HolderState.GRANTING, HolderState.HELD)
