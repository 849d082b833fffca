"""The record of a request for several answers, as listings, aborts and deadlines see it: one request, one id.

One task runs it (``steps.choices``), and one task each of its choices. To end it early, ``stop`` is called.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from baton_serve.core.protocol.errors import DeadlineError
from baton_serve.router.request.states import LIVE, State

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from baton_serve.core.protocol.errors import ApiError
    from baton_serve.core.protocol.openai.choices import Choices
    from baton_serve.router.request.client_request import ClientRequest
    from baton_serve.router.request.exchange import Exchange, Trace
    from baton_serve.router.request.reply import ClientReply

#: Live states in the order in which a request goes through them.
_ORDER = {state: number for number, state in enumerate(LIVE)}

_BROKEN = frozenset({State.FAILED, State.ABORTED})


class WholeRequest:
    """One request of several choices. ``steps.exit`` releases what they hold."""

    __slots__ = (
        "asked",
        "broke_off_in",
        "choices",
        "clock",
        "end_state",
        "exchanges",
        "relayed_error",
        "reply",
        "request_id",
        "started_s",
        "stop_error",
        "task",
        "trace",
    )

    def __init__(
        self,
        request_id: str,
        asked: ClientRequest,
        choices: Choices,
        reply: ClientReply,
        exchanges: Sequence[Exchange],
        clock: Callable[[], float],
    ) -> None:
        """``clock``: the event loop's, seconds."""
        self.request_id = request_id
        self.asked = asked
        self.choices = choices
        self.reply = reply
        #: The choices, in the order of their indices.
        self.exchanges = exchanges
        self.clock = clock
        self.started_s = self.clock()
        #: The request's state when its first choice failed or was aborted.
        self.broke_off_in = State.DECODING
        #: How it ended; None: it is live.
        self.end_state: State | None = None
        #: The error in the stream of a choice, which the client has been sent.
        self.relayed_error: ApiError | None = None
        self.stop_error: ApiError | None = None
        self.task: asyncio.Task[None] | None = None
        self.trace: Trace | None = None

    @property
    def state(self) -> State:
        """Where it is: with the choice that has come least far."""
        if self.end_state is not None:
            return self.end_state
        live = [one.progress.state for one in self.exchanges if not one.progress.over]
        return min(live, key=_ORDER.__getitem__, default=self.broke_off_in)

    def breaks_off(self, request: Exchange) -> None:
        """Note that a choice ends. If it is the first that is not done, keep the state: all others end too."""
        if not request.progress.over and not any(one.progress.state in _BROKEN for one in self.exchanges):
            self.broke_off_in = self.state

    def stop(self, error: ApiError) -> bool:
        """End the request and all of its choices now. Returns False if it was over or ending."""
        if self.stop_error is not None or self.end_state is not None:
            return False
        self.stop_error = error
        if self.task is not None:  # else the task looks before its first step
            self.task.cancel()
        return True

    def deadline(self) -> None:
        """End the request because its deadline has passed."""
        self.stop(DeadlineError("The request took longer than its deadline."))

    def trace_with(self, trace: Trace) -> None:
        """Note the phases of all choices there from now on."""
        self.trace = trace
        for index, one in enumerate(self.exchanges):
            one.trace_with(trace.of_choice(index))

    def __repr__(self) -> str:
        return f"<WholeRequest {self.request_id} {self.state}, {len(self.exchanges)} choices>"
