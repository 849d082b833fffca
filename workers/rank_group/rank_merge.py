"""Merges the ranks' answers to a step, and their reports of a read, into one. Pure.

A step is over when every rank has answered. Rank 0 samples and scores, and its answer alone says what came of that.
``Gather`` counts the parts of a read, whose outcome is that of its worst part.
"""

from __future__ import annotations

from msgspec.structs import replace

from baton_serve.core.protocol.steps import Read, ReadResult, StepResult
from baton_serve.workers.engine.errors import RankProtocolError
from baton_serve.workers.engine.ports import ReadFailing
from baton_serve.workers.sharding.gather import Gather, GatherEvent

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
        """The step was sent to the ranks."""
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


class OpenRead:
    """A read that has not ended."""

    __slots__ = ("engine_id", "is_cancelled", "parts")

    def __init__(self, engine_id: str) -> None:
        self.engine_id = engine_id
        self.is_cancelled = False
        #: The ranks' results by rank, in the order of arrival.
        self.parts: dict[int, ReadResult] = {}


class ReadMerge:
    """Reads that have not ended on every rank."""

    def __init__(self, num_ranks: int) -> None:
        self._num_ranks = num_ranks
        self._gather: Gather[int] = Gather()
        self._open: dict[int, OpenRead] = {}

    def __len__(self) -> int:
        return len(self._open)

    def start(self, read: Read) -> None:
        """The read was sent to the ranks."""
        self._open[read.read_id] = OpenRead(read.engine_id)
        self._gather.open(read.read_id, self._num_ranks)

    def get(self, read_id: int) -> OpenRead | None:
        """The read, unless it has ended."""
        return self._open.get(read_id)

    def pop(self, read_id: int) -> OpenRead:
        """Remove a read that has ended."""
        return self._open.pop(read_id)

    def handle(self, rank: int, part: ReadResult) -> ReadFailing | ReadResult | None:
        """Take the result of one rank. Returns ReadFailing, or ReadResult if the read has ended (then ``pop`` it), or
        None.

        A cancelled part does not make the read fail, because it was cancelled on purpose. Late and repeated parts are
        ignored.
        """
        outcome = _outcome_of(part)
        event = self._gather.report(part.read_id, rank, ok=outcome != "failed")
        if event is None:
            return None
        parts = self._open[part.read_id].parts
        parts[rank] = part
        if event is GatherEvent.WAITING:
            return None
        if event is GatherEvent.FAILED:
            return ReadFailing(part.read_id, self._error_of(parts, outcome))
        return self._merge(part.read_id, parts)

    def _merge(self, read_id: int, parts: dict[int, ReadResult]) -> ReadResult:
        outcome = max(map(_outcome_of, parts.values()), key=_OUTCOMES.index)
        return ReadResult(
            read_id,
            outcome,
            sum(part.num_bytes for part in parts.values()),
            max(part.seconds for part in parts.values()),
            self._error_of(parts, outcome),
            sum(part.num_descriptors for part in parts.values()),
            _stale_blocks(parts) if outcome == "stale" else [],
        )

    def _error_of(self, parts: dict[int, ReadResult], outcome: str) -> str:
        """The error of the first part with that outcome, with its rank if there are several ranks."""
        if outcome == "done":
            return ""
        rank, part = next((rank, part) for rank, part in parts.items() if _outcome_of(part) == outcome)
        error = part.error or f"the read of P's blocks ended as {part.outcome!r}"
        return error if self._num_ranks == 1 else f"rank {rank}: {error}"


def _outcome_of(part: ReadResult) -> str:
    return part.outcome if part.outcome in _OUTCOMES else "failed"


def _stale_blocks(parts: dict[int, ReadResult]) -> list[int]:
    """The blocks that are stale on any rank; empty if a stale rank names none, because any block may be stale then."""
    stale = [part.stale_blocks for part in parts.values() if part.outcome == "stale"]
    return sorted(set().union(*stale)) if all(stale) else []
