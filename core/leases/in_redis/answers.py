"""What the scripts answer, as statuses of leases. An answer that cannot be read is a LeaseStoreError."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from baton_serve.core.leases.ids import check_id
from baton_serve.core.leases.store import LeaseState, LeaseStatus, LeaseStoreError

#: What ``renew.lua`` says instead of a remaining time.
_RELEASED, _NOT_THERE = -1, -2


class RenewedBatch:
    """A renewal of some leases of one engine: what was asked, and then what is known.

    ``error``  why nothing is known, if so
    ``gone``   the leases that are not in the engine's set, by their number from 0; the outcomes say what became of them
    """

    def __init__(self, engine_id: str, lease_ids: Sequence[str]) -> None:
        self.engine_id = engine_id
        self.lease_ids = lease_ids
        self.statuses: list[LeaseStatus] = []
        self.gone: list[int] = []
        self.error: LeaseStoreError | None = None

    def take(self, answer: list[Any] | LeaseStoreError) -> None:
        """Take the answer of ``renew.lua``."""
        self._read(answer, self._renewed)

    def take_outcomes(self, answer: list[Any] | LeaseStoreError) -> None:
        """Take the answer of ``outcomes.lua`` about the leases that are gone."""
        self._read(answer, self._ended)

    def _read(self, answer: list[Any] | LeaseStoreError, read: Callable[[list[Any]], None]) -> None:
        if isinstance(answer, LeaseStoreError):
            self.error = answer
            return
        try:
            with unreadable_answer_errors():
                read(answer)
        except LeaseStoreError as error:
            self.error = error

    def _renewed(self, answer: list[Any]) -> None:
        """The script names only leases that have another time left than the first number, which is for all others."""
        self.statuses = [LeaseStatus(lease_id, LeaseState.HELD, answer[0]) for lease_id in self.lease_ids]
        for number, remaining_ms in zip(answer[1::2], answer[2::2], strict=True):
            state = LeaseState.RELEASED if remaining_ms == _RELEASED else LeaseState.HELD
            self.statuses[number - 1] = LeaseStatus(self.lease_ids[number - 1], state, max(0, remaining_ms))
            if remaining_ms == _NOT_THERE:
                self.gone.append(number - 1)

    def _ended(self, answer: list[Any]) -> None:
        for number, outcome in zip(self.gone, answer, strict=True):
            self.statuses[number] = _status(self.lease_ids[number], outcome, 0)


def renewed_statuses(
    engine_ids: Iterable[str], batches: Iterable[RenewedBatch]
) -> dict[str, list[LeaseStatus] | LeaseStoreError]:
    """The answers to a renewal by engine, in the order of the batches; one error is enough to know nothing."""
    found: dict[str, list[LeaseStatus]] = {engine_id: [] for engine_id in engine_ids}
    errors: dict[str, LeaseStoreError] = {}
    for batch in batches:
        found[batch.engine_id] += batch.statuses
        if batch.error is not None:
            errors[batch.engine_id] = batch.error
    return {**found, **errors}


def reaped_statuses(lease_ids: Sequence[str], answer: list[Any]) -> list[LeaseStatus]:
    """The answer of ``reap.lua``: a state and the remaining ms of each lease."""
    with unreadable_answer_errors():
        return [_status(*row) for row in zip(lease_ids, answer[::2], answer[1::2], strict=True)]


def listed_statuses(answer: list[Any]) -> tuple[list[LeaseStatus], int]:
    """The answer of ``held.lua``, id, state and remaining ms of each lease; and how many members are no leases."""
    with unreadable_answer_errors():
        rows = [*zip(answer[::3], answer[1::3], answer[2::3], strict=True)]
        ours = [row for row in rows if _is_lease(row[0])]
        statuses = [_status(lease_id.decode("ascii"), state, remaining) for lease_id, state, remaining in ours]
    return statuses, len(rows) - len(ours)


@contextmanager
def unreadable_answer_errors() -> Iterator[None]:
    """Raise LeaseStoreError if an answer cannot be read, because another program wrote under one of Baton's keys."""
    try:
        yield
    except (ValueError, AttributeError, TypeError, IndexError) as error:
        raise LeaseStoreError(f"Redis holds something that is not ours: {error}") from error


def _is_lease(member: bytes) -> bool:
    try:
        check_id(member.decode("ascii"))
    except ValueError:  # UnicodeDecodeError is a ValueError
        return False
    return True


def _status(lease_id: str, state: bytes, remaining_ms: int) -> LeaseStatus:
    return LeaseStatus(lease_id, LeaseState(state.decode("ascii")), int(remaining_ms))
