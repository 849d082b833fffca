"""What a search covers, and the known-bad variants of the protocol that it has to find."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum


class Variant(StrEnum):
    """One thing done wrong. The search of each has to end with a trace."""

    #: D accepts what it has read without comparing versions.
    NO_FENCE = "no-fence"
    #: P overwrites a block and changes its version only then.
    BUMP_AFTER_WRITE = "bump-after-write"
    #: P changes a block's version when a lease ends, not when the block is taken.
    BUMP_AT_RELEASE = "bump-at-release"
    #: P frees a lease's blocks at its own deadline, without asking the store whether it was renewed.
    FREE_BEFORE_REAP = "free-before-reap"
    #: The router renews the leases of one engine only.
    RENEW_ONE_ENGINE = "renew-one-engine"
    #: D gives a sequence's blocks back as soon as it is aborted, while its read may still write them.
    REUSE_DURING_READ = "reuse-during-read"
    #: P counts a notification that comes twice as two readers.
    COUNT_TWICE = "count-twice"
    #: The router does not leave out the D that has just failed.
    RETRY_SAME = "retry-same"
    #: A cancelled request ends without the exit: its lease stays in the renewal book.
    EXIT_WITHOUT_RELEASE = "exit-without-release"


@dataclass(frozen=True)
class Scope:
    """Sizes of a search. All workers are there from the start; what crashes is back at once, empty."""

    requests: int = 1
    prefill_workers: int = 1
    decode_workers: int = 2
    #: Blocks of each P, and blocks that a request takes.
    blocks: int = 2
    blocks_per_request: int = 1
    #: Ranks of each D; P has one.
    ranks: int = 1
    #: Sequences that have blocks on a D at the same time.
    seats: int = 1
    #: Prefills that the router tries for one request, and decodes for one prefill.
    prefills: int = 1
    decodes: int = 3
    faults: int = 2
    variant: Variant | None = None

    def __post_init__(self) -> None:
        """ValueError for a scope that says nothing."""
        for one in fields(self):
            least = 0 if one.name == "faults" else 1
            value = getattr(self, one.name)
            if isinstance(value, int) and value < least:
                raise ValueError(f"{one.name} is {value}, but has to be {least} at least")

    @property
    def attempts(self) -> int:
        """Prefills of all requests. Number ``r * prefills + k`` is the k-th of request r; its lease has that number."""
        return self.requests * self.prefills

    def is_variant(self, variant: Variant) -> bool:
        """Whether this thing is done wrong here."""
        return self.variant is variant
