"""Merges the ranks' answers to a step, and their reports of a read, into one. Pure.

A step is over when every rank has answered. Rank 0 samples and scores, and its answer alone says what came of that.
A read fails with its first part that does, and has ended when all parts have: until then its blocks may still be
written. Its outcome is that of its worst part.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from baton_serve.core.protocol.steps import ReadResult, StepResult
from baton_serve.workers.engine.errors import RankProtocolError
from baton_serve.workers.engine.ports import ReadFailing

#: Outcomes of the parts of a read, best first. The read has the worst one.
_OUTCOMES = ("done", "stale", "cancelled", "failed")


class StepMerge:
    """Steps that not every rank has answered: at most the one that runs, and one that was sent ahead."""

    def __init__(self, num_ranks: int) -> None:
        self._num_ranks = num_ranks
        self._parts: dict[int, dict[int, StepResult]] = {}

    def __len__(self) -> int:
        return len(self._parts)

    def start(self, step_id: int) -> None:
        if self._num_ranks > 1:
            self._parts[step_id] = {}

    def handle(self, rank: int, part: StepResult) -> StepResult | None:
        """Take a rank's result; returns the merged result after the last rank's. A single rank's is returned unchanged.

        Raises RankProtocolError if the rank was not asked, or has answered already.
        """
        if self._num_ranks == 1:
            return part
        parts = self._parts.get(part.step_id)
        if parts is None or rank in parts:
            raise RankProtocolError(f"rank {rank} answered step {part.step_id}, which it was not asked or has answered")
        parts[rank] = part
        if len(parts) < self._num_ranks:
            return None
        del self._parts[part.step_id]
        # What rank 0 sampled and scored, and the time of the slowest rank.
        return replace(parts[0], seconds=max(part.seconds for part in parts.values()))

    def silent(self, step_id: int) -> list[int]:
        """The ranks that have not answered the step, which was sent and is not over."""
        parts = self._parts.get(step_id, {})
        return [rank for rank in range(self._num_ranks) if rank not in parts]


class ReadMerge:
    """One read, until it has ended on every rank."""

    def __init__(self, engine_id: str, num_ranks: int) -> None:
        self.engine_id = engine_id
        self.is_cancelled = False
        self._num_ranks = num_ranks
        #: The ranks' results by rank, in the order of arrival.
        self._parts: dict[int, ReadResult] = {}

    def handle(self, rank: int, part: ReadResult) -> ReadFailing | ReadResult | None:
        """Take the result of one rank. Returns ReadFailing for the first failure, and ReadResult for the last part.

        A cancelled part does not make the read fail, because it was cancelled on purpose. A repeated part is ignored.
        """
        if rank in self._parts:
            return None
        failed_before = "failed" in self._outcomes()
        self._parts[rank] = part
        if len(self._parts) == self._num_ranks:
            return self._merge(part.read_id)
        if _outcome_of(part) == "failed" and not failed_before:
            return ReadFailing(part.read_id, self._error_of("failed"))
        return None

    def _outcomes(self) -> list[str]:
        return [_outcome_of(part) for part in self._parts.values()]

    def _merge(self, read_id: int) -> ReadResult:
        parts, outcome = self._parts.values(), max(self._outcomes(), key=_OUTCOMES.index)
        return ReadResult(
            read_id,
            outcome,
            sum(part.num_bytes for part in parts),
            max(part.seconds for part in parts),
            self._error_of(outcome),
            sum(part.num_descriptors for part in parts),
            _stale_blocks(parts) if outcome == "stale" else [],
        )

    def _error_of(self, outcome: str) -> str:
        """The error of the first part with that outcome, with its rank if there are several ranks."""
        if outcome == "done":
            return ""
        rank, part = next((rank, part) for rank, part in self._parts.items() if _outcome_of(part) == outcome)
        error = part.error or f"the read of P's blocks ended as {part.outcome!r}"
        return error if self._num_ranks == 1 else f"rank {rank}: {error}"


def _outcome_of(part: ReadResult) -> str:
    return part.outcome if part.outcome in _OUTCOMES else "failed"


def _stale_blocks(parts: Iterable[ReadResult]) -> list[int]:
    """The blocks that are stale on any rank; empty if a stale rank names none, because any block may be stale then."""
    stale = [part.stale_blocks for part in parts if part.outcome == "stale"]
    return sorted(set().union(*stale)) if all(stale) else []
