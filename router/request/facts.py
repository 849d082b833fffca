"""What observers of a request get to see: metrics, log lines, traces, the admin REST and the dashboard.

They get these facts and never the record, so none of them can change a request or depend on how it is built.
"""

from __future__ import annotations

import msgspec

from baton_serve.core.protocol.errors import ApiError
from baton_serve.router.request.states import State


class RequestFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One request at one moment. ``started_s`` is on the event loop's clock."""

    id: str
    #: The id that its client gave it; None: it gave none.
    client_id: str | None
    state: State
    #: Path at which the client asked.
    endpoint: str
    chat: bool
    model: str
    user: str
    stream: bool
    priority: int
    #: Most new tokens. None: as many as fit.
    max_new_tokens: int | None
    #: Ids of the last workers to which its legs were sent.
    prefill_worker: str | None
    decode_worker: str | None
    #: The lease on its blocks; empty: none.
    lease_id: str
    #: Milliseconds for which P surely keeps the blocks; None: that is not known, or it holds none.
    lease_remaining_ms: int | None
    started_s: float
    age_s: float
    #: Seconds in each state that it has left, summed over repetitions.
    spent_s: dict[State, float]
    #: Seconds from arrival to first content; None: not streamed, or there is none yet.
    ttft_s: float | None
    #: The client has been sent the head of its answer.
    answer_begun: bool
    #: Tokens and chunks that the client of a stream has been sent.
    num_tokens: int
    num_chunks: int
    #: How often its prompt was computed.
    num_prefills: int
    num_retries: int
    num_migrations: int
    #: Its stream broke, and no other worker has continued it yet.
    is_migrating: bool
    #: Engines that died with the request on them.
    dead_engines: tuple[str, ...]
    #: The error of the last attempt that failed; None: none has.
    last_error: ApiError | None
    trace_id: str | None
    #: The live state in which it ended; None: it is live, or its outcome was known before its exit (done, or failed
    #: with an error inside D's stream).
    ended_in: State | None = None
    #: Why it ended; None: it is live, or the client has everything.
    error: ApiError | None = None
    #: Whether ``error`` was inside D's stream and was passed on to the client.
    is_error_relayed: bool = False

    @property
    def in_state_s(self) -> float:
        """Seconds that a live request has been in its present state."""
        return self.age_s - sum(self.spent_s.values())
