"""The record of one request: what was asked, its state, what it holds, and what was tried. Independent of the steps.

One task runs it (``steps.run``). To end it early (client gone, deadline, admin), ``stop`` is called.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import msgspec

from baton_serve.core.leases.store import LeaseState
from baton_serve.core.protocol.client_key import HEADER as CLIENT_HEADER
from baton_serve.core.protocol.errors import ApiError, DeadlineError
from baton_serve.router.placement import Prompt
from baton_serve.router.pool import Route, Worker
from baton_serve.router.pool.route import RequestRoute
from baton_serve.router.request.attempts import Attempts
from baton_serve.router.request.bodies import ClientBody
from baton_serve.router.request.choices.shared_prefill import ChoiceRole
from baton_serve.router.request.client_request import ClientRequest
from baton_serve.router.request.facts import RequestFacts
from baton_serve.router.request.failure_table import Failure
from baton_serve.router.request.held import Held, Releaser
from baton_serve.router.request.prompt_text import num_prompt_bytes, num_prompt_ids, prompt_text
from baton_serve.router.request.reply import Reply
from baton_serve.router.request.sent_tokens import SentTokens
from baton_serve.router.request.states import LIVE, RETRIES, Event, RequestProgress, State

log = logging.getLogger("baton.router")


class BlocksLost(Exception):
    """P's blocks are of no use any more to a request that waits for a D, or is about to be sent to one.

    ``failure``: P has lost them, or no D is left that could read them.
    """

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure)
        self.failure = failure


class Trace(Protocol):
    """Receives the phases of a request as they end; implemented by ``telemetry.tracing.spans``."""

    @property
    def trace_id(self) -> str:
        """The trace id, in the form that logs show."""

    def headers(self) -> tuple[tuple[str, str], ...]:
        """Headers that tell a worker which span its work belongs to."""

    def left(self, state: State, event: Event, now_s: float, worker_id: str, error: ApiError | None) -> None:
        """Note that the request has left ``state``. ``worker_id``: the worker that had it then; empty if none.

        ``error``: the last failed attempt's.
        """

    def end(self, facts: RequestFacts) -> None:
        """Note that the request is over."""

    def of_choice(self, index: int) -> Trace:
        """The phases of one of several choices, which end with the whole request."""


class LiveRequest:
    """One request. A task runs it; to end it early (client gone, deadline, admin), ``stop`` is called."""

    def __init__(self, request_id: str, asked: ClientRequest, reply: Reply, clock: Callable[[], float]) -> None:
        """``clock``: the event loop's, seconds."""
        self.request_id = request_id
        self.asked = asked
        self.reply = reply
        self.clock = clock
        #: The error that D put into its stream, and that the client was sent.
        self.relayed_error: ApiError | None = None
        self.stop_error: ApiError | None = None
        self.task: asyncio.Task[None] | None = None
        self.trace: Trace | None = None

    @property
    def exchanges(self) -> Sequence[Exchange]:
        """The requests that workers are sent: one for each answer."""
        raise NotImplementedError

    @property
    def state(self) -> State:
        """Where it is."""
        raise NotImplementedError

    @property
    def is_over(self) -> bool:
        """Whether it has ended, in whatever way."""
        raise NotImplementedError

    def end(self, *, is_aborted: bool) -> None:
        """Note the end, unless it is over, and give back the blocks. ``vacate`` gives back the places."""
        raise NotImplementedError

    def facts(self, now_s: float) -> RequestFacts:
        """What observers get of it, while it is live. ``now_s``: of the loop's clock."""
        raise NotImplementedError

    def facts_at_end(self, before: State, error: ApiError | None, now_s: float) -> RequestFacts:
        """The same when it is over. ``before``: its state when its exit began; ``error``: why it ended."""
        relayed = self.relayed_error if error is None else None
        return msgspec.structs.replace(
            self.facts(now_s),
            ended_in=before if before in LIVE else None,
            error=error or relayed,
            is_error_relayed=relayed is not None,
        )

    def _ttft_s(self, started_s: float) -> float | None:
        first_s = self.reply.first_content_s if self.asked.stream else None
        return None if first_s is None else first_s - started_s

    def vacate(self) -> None:
        """Leave the workers: release the places there, and close their answers."""
        for one in self.exchanges:
            one.vacate()

    def stop(self, error: ApiError) -> bool:
        """End the request now, in any state. Returns False if it was over or ending."""
        if self.stop_error is not None or self.is_over:
            return False
        self.stop_error = error
        if self.task is not None:  # else the task looks before its first step
            self.task.cancel()
        return True

    def deadline(self) -> None:
        """End the request because its deadline has passed."""
        self.stop(DeadlineError("The request took longer than its deadline."))

    def trace_with(self, trace: Trace) -> None:
        """Note its phases there from now on."""
        self.trace = trace


class Exchange(LiveRequest):
    """One request for one answer, or one choice of a request for several. ``steps.exit`` ends it in any case."""

    def __init__(
        self,
        request_id: str,
        number: int,
        asked: ClientRequest,
        body: ClientBody,
        reply: Reply,
        sent_tokens: SentTokens,
        attempts: Attempts,
        route: RequestRoute,
        releaser: Releaser,
        clock: Callable[[], float],
        prompt: Prompt | None = None,
    ) -> None:
        """``number`` grows with every request and orders it in queues. ``releaser`` releases what it holds. ``clock``:
        the event loop's, seconds.

        ``prompt``: what is known of the prompt, if another choice has the same; None: it is found in the body.
        """
        super().__init__(request_id, asked, reply, clock)
        self.number = number
        self.body = body
        self.prompt = prompt or Prompt(
            asked.model, num_prompt_bytes(body.fields), partial(prompt_text, body.fields), num_prompt_ids(body.fields)
        )
        #: Its role among the choices of a request; None: it is a request by itself.
        self.choice: ChoiceRole | None = None
        self.progress = RequestProgress(clock())
        self._route = route
        #: The last workers that prefilled and decoded.
        self.prefill_worker: Worker | None = None
        self.decode_worker: Worker | None = None
        self.held = Held(releaser)
        #: Whether one worker prefills and decodes it, although it could be split.
        self.goes_whole = False
        #: The tokens that the client has been sent, so that another worker can continue; streams only.
        self.sent_tokens = sent_tokens
        #: What was tried, and which workers failed.
        self.attempts = attempts

    # --- from outside

    def lease_over(self, end: LeaseState) -> None:
        """Note that P no longer keeps the blocks.

        A held request is prefilled again at once; a D that is reading the blocks finds out itself.
        """
        self.held.lease_end = end
        state = self.progress.state
        if state is State.HELD and self.held.waiter is not None:
            self.held.waiter.fail(BlocksLost(Failure.LEASE_LOST))
        elif state is State.READING and not self.asked.stream and end is LeaseState.DONE:
            self.on(Event.READ)

    def headers(self) -> tuple[tuple[str, str], ...]:
        """Headers to send to a worker with the request."""
        headers = (("x-request-id", self.request_id), *(() if self.trace is None else self.trace.headers()))
        if self.choice is not None:
            headers = (*headers, self.choice.choice.header())
        if self.asked.client:
            headers = (*headers, (CLIENT_HEADER, self.asked.client))
        return headers

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        return (self,)

    @property
    def num_readers(self) -> int:
        """For how many choices P keeps the blocks."""
        return 1 if self.choice is None else self.choice.num_readers

    @property
    def state(self) -> State:
        return self.progress.state

    @property
    def is_over(self) -> bool:
        return self.progress.over

    def end(self, *, is_aborted: bool) -> None:
        """Note the end, unless it is over, and give back the blocks. A choice then takes nothing more of others."""
        if not self.progress.over:
            self.on(Event.ABORTED if is_aborted else Event.FAILED)
        self.held.drop_lease()
        if self.choice is not None:
            self.choice.leave()

    @property
    def is_untried(self) -> bool:
        """Whether no worker has had it yet, so that a full queue may refuse it.

        False for a choice: ``steps.choices`` makes room for all choices of the request at once.
        """
        if self.choice is not None:
            return False
        is_new = not (self.attempts.num_retries or self.reply.is_begun)
        return is_new and self.progress.state is State.QUEUED

    @property
    def was_served(self) -> bool:
        """Whether a worker has died with the request, or its client has been sent something."""
        return bool(self.attempts.dead_engines) or self.sent_tokens.begun or self.reply.is_begun

    @property
    def lacks_one_token(self) -> bool:
        """Whether a migrated stream needs only one more token: one worker computes it, and nothing is handed over."""
        sent = self.sent_tokens
        return sent.begun and len(sent.ids() or ()) + 1 == self.asked.max_new_tokens

    def route(self, *, any_weights: bool = False) -> Route | None:
        """The workers that may serve it now, reachable or not. None: none may, but others may register.

        ``any_weights``: also workers that cannot continue after the client's tokens.
        """
        return self._route.now(None if any_weights else self.weights)

    @property
    def weights(self) -> str | None:
        """``Worker.weights_of`` of the workers that computed the client's tokens; None while the client has none."""
        return self.sent_tokens.weights if self.sent_tokens.begun else None

    def facts(self, now_s: float) -> RequestFacts:
        asked, attempts, progress, lease = self.asked, self.attempts, self.progress, self.held.lease
        return RequestFacts(
            id=self.request_id,
            client_id=self.reply.client_id or None,
            state=progress.state,
            endpoint=asked.endpoint,
            chat=asked.chat,
            model=asked.model,
            user=asked.user,
            stream=asked.stream,
            priority=asked.priority,
            max_new_tokens=asked.max_new_tokens,
            prefill_worker=_id(self.prefill_worker),
            decode_worker=_id(self.decode_worker),
            lease_id=self.held.lease_id,
            lease_remaining_ms=None if lease is None else lease.remaining_ms(),
            started_s=progress.started_s,
            age_s=progress.age_s(now_s),
            spent_s=dict(progress.spent_s),
            ttft_s=self._ttft_s(progress.started_s),
            answer_begun=self.reply.started,
            num_tokens=progress.num_tokens,
            num_chunks=progress.num_chunks,
            num_prefills=attempts.num_computed,
            num_retries=attempts.num_retries,
            num_migrations=attempts.num_migrations,
            is_migrating=attempts.is_migrating,
            dead_engines=tuple(attempts.dead_engines),
            last_error=attempts.last_error,
            trace_id=None if self.trace is None else self.trace.trace_id,
        )

    # --- bookkeeping, used by the steps

    def on(self, event: Event) -> None:
        """Note an event: change the state and end the trace's phase. Raises IllegalEvent."""
        state, now_s = self.progress.state, self.clock()
        self.progress.on(event, now_s)
        if event in RETRIES:
            self.attempts.num_retries += 1
        if self.trace is not None:
            try:
                self.trace.left(state, event, now_s, self._worker_in(state), self.attempts.last_error)
            except Exception:
                log.exception("a phase of request %s was not traced", self.request_id)

    def _worker_in(self, state: State) -> str:
        """Id of the worker that has the request in ``state``; empty if none has."""
        worker: Worker | None = None
        if state is State.PREFILLING:
            worker = self.prefill_worker
        elif state is State.READING or state is State.DECODING:
            worker = self.decode_worker
        return "" if worker is None else worker.worker_id

    def tokens_come_from(self, worker: Worker) -> None:
        """Note that the client's next tokens come from the worker."""
        if self.choice is not None:
            self.choice.is_named = worker.kind.names_choices
        adapter = worker.adapter_of(self.asked.model)
        self.sent_tokens.come_from(worker.weights_with(adapter), adapter)

    def vacate(self) -> None:
        self.held.vacate(self.request_id)

    def __repr__(self) -> str:
        return f"<Exchange {self.request_id} {self.progress!r} with {self.held!r}>"


def _id(worker: Worker | None) -> str | None:
    return None if worker is None else worker.worker_id
