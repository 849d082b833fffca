"""The live requests, by id. Listings and aborts use ids and facts, never the records."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from baton_serve.core.leases.store import LeaseState
from baton_serve.core.protocol.errors import ApiError
from baton_serve.router.request.exchange import Exchange, LiveRequest
from baton_serve.router.request.facts import RequestFacts
from baton_serve.router.request.states import LIVE, State


class ActiveRequests:
    """The live requests, in order of arrival. A request for several answers is one of them, with one id."""

    def __init__(self) -> None:
        self._by_id: dict[str, LiveRequest] = {}
        self._number = 0
        #: The number of answers that all live requests ask for.
        self.num_choices = 0

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[LiveRequest]:
        return iter(tuple(self._by_id.values()))

    def exchanges(self) -> Iterator[Exchange]:
        """The requests that workers are sent. A request for several answers gives its choices."""
        return (one for request in self for one in request.exchanges)

    def next_number(self) -> int:
        """Returns a number that grows with every request; queues order requests of one priority by it."""
        self._number += 1
        return self._number

    def add(self, request: LiveRequest) -> None:
        """Add an admitted request."""
        self._by_id[request.request_id] = request
        self.num_choices += len(request.exchanges)

    def remove(self, request: LiveRequest) -> None:
        """Remove a request that is over."""
        if self._by_id.pop(request.request_id, None) is not None:
            self.num_choices -= len(request.exchanges)

    def get(self, request_id: str) -> LiveRequest | None:
        """The live request of that id; None if there is none."""
        return self._by_id.get(request_id)

    def ids(self) -> list[str]:
        """The ids of all live requests, in order of arrival."""
        return list(self._by_id)

    def facts(self, now_s: float, ids: Iterable[str] | None = None) -> list[RequestFacts]:
        """The facts of all live requests, or of those in ``ids`` that are live. ``now_s``: the loop's clock."""
        wanted = list(self._by_id) if ids is None else ids
        return [self._by_id[each].facts(now_s) for each in wanted if each in self._by_id]

    def lease_keepers(self) -> dict[str, str]:
        """Ids of the live requests that hold a lease, by lease id."""
        return {
            one.held.lease_id: request.request_id
            for request in self._by_id.values()
            for one in request.exchanges
            if one.held.lease_id
        }

    def longest_s(self, state: State, now_s: float) -> float | None:
        """The longest time, in seconds, that a live request has now been in ``state``; None if no request is in it."""
        return max(
            (one.progress.in_state_s(now_s) for one in self.exchanges() if one.progress.state is state),
            default=None,
        )

    def count(self) -> dict[State, int]:
        """The number of requests in each live state. A request for several answers counts once for each choice."""
        counts = dict.fromkeys(LIVE, 0)
        for one in self.exchanges():
            if not one.progress.over:  # as choices are that end before others
                counts[one.progress.state] += 1
        return counts

    def engine_gone(self, engine_id: str) -> None:
        """Note that an engine is gone: requests whose blocks it held have lost them."""
        for exchange in self.exchanges():
            if exchange.held.engine_id == engine_id:
                exchange.lease_over(LeaseState.UNKNOWN)

    def leases_on(self, engine_id: str) -> list[str]:
        """The leases that requests hold on the blocks of an engine."""
        found = (one.held.lease_id for one in self.exchanges() if one.held.engine_id == engine_id)
        return [lease_id for lease_id in dict.fromkeys(found) if lease_id]

    def leases_lost(self, engine_id: str, lease_ids: Collection[str]) -> None:
        """Note that an engine does not hold these leases: their requests have lost the blocks."""
        for exchange in self.exchanges():
            if exchange.held.engine_id == engine_id and exchange.held.lease_id in lease_ids:
                exchange.lease_over(LeaseState.UNKNOWN)

    def stop(self, request_id: str, error: ApiError) -> bool:
        """End one request now, in whatever state it is. Returns False if it is not live or already ending."""
        request = self._by_id.get(request_id)
        return request is not None and request.stop(error)

    def stop_all(self, error: ApiError) -> int:
        """Abort all requests; returns the number that were live and not ending already."""
        return sum(exchange.stop(error) for exchange in self)
