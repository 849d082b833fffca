"""The requests that are not over, by id: what the admin REST lists and aborts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.leases.store import LeaseState
from router.request.states import LIVE, State

if TYPE_CHECKING:
    from collections.abc import Iterator

    from core.protocol.errors import ApiError
    from router.request.exchange import Exchange


class ActiveRequests:
    """Live requests in order of arrival."""

    def __init__(self) -> None:
        self._by_id: dict[str, Exchange] = {}
        self._number = 0

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Exchange]:
        return iter(tuple(self._by_id.values()))

    def next_number(self) -> int:
        """Grows with every request: its age in queues."""
        self._number += 1
        return self._number

    def add(self, exchange: Exchange) -> None:
        """A request came."""
        self._by_id[exchange.request_id] = exchange

    def remove(self, exchange: Exchange) -> None:
        """It is over."""
        self._by_id.pop(exchange.request_id, None)

    def get(self, request_id: str) -> Exchange | None:
        """The live request of that id."""
        return self._by_id.get(request_id)

    def count(self) -> dict[State, int]:
        """How many are in each live state."""
        counts = dict.fromkeys(LIVE, 0)
        for exchange in self._by_id.values():
            counts[exchange.progress.state] += 1
        return counts

    def engine_gone(self, engine_id: str) -> None:
        """An engine left the registry: who waits with blocks on it has lost them."""
        if engine_id:
            for exchange in self:
                if exchange.engine_id == engine_id:
                    exchange.lease_over(LeaseState.UNKNOWN)

    def stop_all(self, error: ApiError) -> int:
        """Abort everything; how many were told."""
        return sum(exchange.stop(error) for exchange in self)
