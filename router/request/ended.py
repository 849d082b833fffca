"""The requests that ended last, so that an operator can ask why one failed. Pure: the time of day is passed in.

Each outcome has room of its own: a thousand requests that end well do not push out the one that failed. What is kept of
a request is bounded and holds nothing of its prompt or its answer.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import msgspec

from core.protocol.router import owner_of
from router.request.states import LIVE, State

if TYPE_CHECKING:
    from core.protocol.errors import ApiError
    from router.request.exchange import Exchange

#: Requests kept of each outcome. What failed is looked for longest.
ROOM = {State.FAILED: 100, State.ABORTED: 50, State.DONE: 50}
#: What clients chose is cut to so many characters.
MAX_TEXT_CHARS = 100
#: So is what the client was told went wrong.
MAX_ERROR_CHARS = 200


class EndedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request that is over."""

    id: str
    #: ``done``, ``failed`` or ``aborted``.
    outcome: str
    #: The state that it was in when it failed or was aborted; None: it is done.
    ended_in: str | None
    #: Seconds since 1970, by the clock of its router: for people.
    ended_at: float
    #: HTTP status, code and message of the error, as the client was told; None: there was none.
    status: int | None
    code: str | None
    error: str | None
    model: str
    user: str
    endpoint: str
    stream: bool
    prefill_worker: str | None
    decode_worker: str | None
    total_ms: float
    #: Arrival to first content; None: not streamed, or there was none.
    ttft_ms: float | None
    #: Milliseconds in each state that it was in, summed over repetitions.
    phases_ms: dict[str, float]
    #: None: not streamed, and so not counted.
    num_tokens: int | None
    #: Legs that were tried again, and times that another worker went on with its stream.
    num_retries: int
    num_resumed: int
    #: Engines that died with the request on them.
    dead_engines: list[str]
    trace_id: str | None
    #: Id of the router that had it.
    router: str
    #: What its client calls it.
    client_id: str | None = None


def ended_request(request: Exchange, state: State, error: ApiError | None, ended_at: float) -> EndedRequest:
    """What is kept of a request that is over; it was in ``state`` just before."""
    first_s = request.reply.first_content_s if request.ask.stream else None
    return EndedRequest(
        id=request.request_id,
        outcome=str(request.progress.state),
        ended_in=_ended_in(request, state),
        ended_at=round(ended_at, 3),
        status=error.status if error else None,
        code=(error.code or error.type)[:MAX_TEXT_CHARS] if error else None,
        error=error.message[:MAX_ERROR_CHARS] if error else None,
        model=request.ask.model[:MAX_TEXT_CHARS],
        user=request.ask.user[:MAX_TEXT_CHARS],
        endpoint=request.ask.path,
        stream=request.ask.stream,
        prefill_worker=request.prefill_worker.worker_id if request.prefill_worker else None,
        decode_worker=request.decode_worker.worker_id if request.decode_worker else None,
        total_ms=round(request.age_s() * 1e3, 1),
        ttft_ms=None if first_s is None else round((first_s - request.progress.started_s) * 1e3, 1),
        phases_ms={str(phase): round(seconds * 1e3, 1) for phase, seconds in request.progress.spent_s.items()},
        num_tokens=request.num_tokens if request.ask.stream else None,
        num_retries=request.attempts.num_retries,
        num_resumed=request.attempts.num_migrations,
        dead_engines=list(request.attempts.dead_engines),
        trace_id=request.trace.trace_id if request.trace else None,
        router=owner_of(request.request_id),
        client_id=request.reply.client_id or None,
    )


def _ended_in(request: Exchange, state: State) -> str | None:
    if state in LIVE:
        return str(state)
    # An error that D put into its stream has been passed on, and noted, before the exit.
    return None if request.progress.state is State.DONE else str(State.DECODING)


class EndedRequests:
    """The newest of each outcome. ``now_s`` is any monotonic clock: ages are told, so that nobody compares clocks."""

    def __init__(self, room: dict[State, int] = ROOM) -> None:
        self._by_outcome: dict[str, deque[tuple[float, EndedRequest]]] = {
            str(outcome): deque(maxlen=num) for outcome, num in room.items()
        }

    def __len__(self) -> int:
        return sum(map(len, self._by_outcome.values()))

    def add(self, now_s: float, ended: EndedRequest) -> None:
        """A request is over; the oldest of its outcome is forgotten if there is no room."""
        self._by_outcome[ended.outcome].append((now_s, ended))

    def newest(self, now_s: float, num_each: int | None = None) -> list[tuple[float, EndedRequest]]:
        """Each with the seconds since its end, newest first; at most ``num_each`` of an outcome."""
        kept = [
            (now_s - ended_s, ended)
            for some in self._by_outcome.values()
            for ended_s, ended in list(some)[-num_each if num_each else 0 :]
        ]
        return sorted(kept, key=lambda pair: pair[0])
