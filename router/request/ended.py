"""The requests that ended last, so that an operator can ask why one failed. Pure: the time of day is passed in.

Each outcome has room of its own: a thousand requests that end well do not push out the one that failed. The record of
a request is bounded in size, and holds nothing of its prompt or its answer.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Annotated, Literal, cast

from pydantic import Field

from baton_serve.core.protocol.request_ids import owner_of
from baton_serve.router.request.facts import RequestFacts
from baton_serve.router.request.states import State

Outcome = Literal["done", "failed", "aborted"]

#: How many requests of each outcome are kept; the most for failures, since people look for these.
ROOM = {State.FAILED: 100, State.ABORTED: 50, State.DONE: 50}
#: Most characters kept of each short text: model and user, which the client sent, and the error's code.
MAX_TEXT_CHARS = 100
#: Most characters kept of an error's message.
MAX_ERROR_CHARS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedRequest:
    """One request that is over."""

    id: str
    client_id: Annotated[
        str | None, Field(description="What its client calls it: `x-client-request-id` or `x-request-id`.")
    ]
    router: Annotated[str, Field(description="Id of the router that had it.")]
    outcome: Outcome
    ended_in: Annotated[str | None, Field(description="The state that it was in when it failed or was aborted.")]
    ended_ms_ago: Annotated[float, Field(description="Since its end, milliseconds.")] = 0.0
    ended_at: Annotated[float, Field(description="Unix time in seconds by the clock of its router; for people.")]
    status: Annotated[int | None, Field(description="HTTP status of its error.")]
    code: Annotated[str | None, Field(description="Code of its error, or the type where it has none.")]
    error: Annotated[str | None, Field(description="What the client was told, cut to 200 characters.")]
    model: str
    user: str
    endpoint: str
    stream: bool
    prefill_worker: str | None
    decode_worker: str | None
    total_ms: float
    ttft_ms: Annotated[float | None, Field(description="Arrival to first content; streams only.")]
    phases_ms: Annotated[dict[str, float], Field(description="Time spent in each state.")]
    num_tokens: Annotated[int | None, Field(description="Events of its stream, nearly one a token; streams only.")]
    num_retries: Annotated[int, Field(description="Legs that were tried again.")]
    num_resumed: Annotated[int, Field(description="Times that another worker went on with its stream.")]
    dead_engines: Annotated[list[str], Field(description="Engines that died with the request on them.")]
    trace_id: str | None


def ended_request(facts: RequestFacts, ended_at: float) -> EndedRequest:
    """The record to keep of a request that is over. ``ended_at``: Unix seconds."""
    error = facts.error
    return EndedRequest(
        id=facts.id,
        client_id=facts.client_id,
        router=owner_of(facts.id),
        outcome=cast("Outcome", str(facts.state)),
        ended_in=_ended_in(facts),
        ended_at=round(ended_at, 3),
        status=error.status if error else None,
        code=(error.code or error.type)[:MAX_TEXT_CHARS] if error else None,
        error=error.message[:MAX_ERROR_CHARS] if error else None,
        model=facts.model[:MAX_TEXT_CHARS],
        user=facts.user[:MAX_TEXT_CHARS],
        endpoint=facts.endpoint,
        stream=facts.stream,
        prefill_worker=facts.prefill_worker,
        decode_worker=facts.decode_worker,
        total_ms=round(facts.age_s * 1e3, 1),
        ttft_ms=None if facts.ttft_s is None else round(facts.ttft_s * 1e3, 1),
        phases_ms={str(phase): round(seconds * 1e3, 1) for phase, seconds in facts.spent_s.items()},
        num_tokens=facts.num_tokens if facts.stream else None,
        num_retries=facts.num_retries,
        num_resumed=facts.num_migrations,
        dead_engines=list(facts.dead_engines),
        trace_id=facts.trace_id,
    )


def _ended_in(facts: RequestFacts) -> str | None:
    if facts.ended_in is not None:
        return str(facts.ended_in)
    # An error inside D's stream ends the request as soon as it is passed on, so at its exit it was already over.
    return None if facts.state is State.DONE else str(State.DECODING)


class EndedRequests:
    """The newest ended requests of each outcome.

    ``now_s`` is of any monotonic clock; results have ages, not times, since the clocks of routers differ. Most requests
    end well and are pushed out unread, so the record of such a request is made only for an answer that lists it.
    """

    def __init__(self, room: dict[State, int] = ROOM) -> None:
        self._by_outcome: dict[State, deque[tuple[float, float, EndedRequest | RequestFacts]]] = {
            outcome: deque(maxlen=num) for outcome, num in room.items()
        }

    def __len__(self) -> int:
        return sum(map(len, self._by_outcome.values()))

    def add(self, now_s: float, facts: RequestFacts, ended_at: float) -> None:
        """Add a request that is over; the oldest of its outcome is dropped if there is no room.

        ``ended_at``: Unix seconds.
        """
        # An error keeps the frames that it went through, and texts may be long.
        keeps_much = facts.last_error or facts.error or len(facts.model) + len(facts.user) > 2 * MAX_TEXT_CHARS
        kept = ended_request(facts, ended_at) if keeps_much else facts
        self._by_outcome[facts.state].append((now_s, ended_at, kept))

    def newest(self, now_s: float, num_each: int | None = None) -> list[EndedRequest]:
        """Returns the requests, newest first; at most ``num_each`` per outcome, None for all."""
        return newest_of(
            replace(
                kept if isinstance(kept, EndedRequest) else ended_request(kept, ended_at),
                ended_ms_ago=round((now_s - ended_s) * 1e3, 1),
            )
            for some in self._by_outcome.values()
            for ended_s, ended_at, kept in list(some)[-num_each if num_each else 0 :]
        )


def newest_of(ended: Iterable[EndedRequest], num_each: int | None = None) -> list[EndedRequest]:
    """The requests, newest first, by the ages that each router tells: clocks of routers are never compared.

    ``num_each``: most of each outcome; None: all.
    """
    num: Counter[str] = Counter()
    newest: list[EndedRequest] = []
    for one in sorted(ended, key=lambda one: one.ended_ms_ago):
        num[one.outcome] += 1
        if num_each is None or num[one.outcome] <= num_each:
            newest.append(one)
    return newest
