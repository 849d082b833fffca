"""The life of one request: P, first token, held, D, relay. ``run`` alone moves it from one state to the next.

Every request ends in ``exit``.
"""

from __future__ import annotations

import asyncio
from typing import TypeVar

from baton_serve.core.net.answers import JSON
from baton_serve.core.net.client.errors import CallError
from baton_serve.core.protocol.errors import UpstreamError
from baton_serve.router.engines.prefill_answer import PrefillAnswer
from baton_serve.router.pool import Route
from baton_serve.router.request.attempts import Decision
from baton_serve.router.request.exchange import BlocksLost, Exchange
from baton_serve.router.request.failure_table import Next
from baton_serve.router.request.states import Event, State
from baton_serve.router.steps.attempt import LegAttempt, Legs
from baton_serve.router.steps.decode import DecodeAttempt, take_at_once
from baton_serve.router.steps.failures import TryAnother
from baton_serve.router.steps.judge import Judge
from baton_serve.router.steps.prefill import PrefillAttempt
from baton_serve.router.steps.relay import Relay

T = TypeVar("T")


class Runner:
    """Runs the requests of a router, each in a task of its own."""

    def __init__(self, legs: Legs, relay: Relay, judge: Judge) -> None:
        self._legs = legs
        self._metrics = legs.metrics
        self._relay = relay
        self._judge = judge

    async def run(self, request: Exchange) -> None:
        """Run the request until the client has everything. Raises ApiError. The caller ends it in any case."""
        self._legs.retry_budget.request(request.clock())
        while True:
            request.held.lease_end = None
            if request.sent_tokens.begun:
                _begin_anew_if_none_can_continue(request)
            route = request.route() or await self._legs.waiting.for_route(request)
            prefilled = await self._prefilled(request, route)
            if isinstance(prefilled, Decision):
                await self._apply(request, prefilled)
                continue
            if request.choice is not None:
                request.choice.leave()
            if prefilled is None:
                request.attempts.prefilled()
            else:
                is_all = await _send_first_token(request, prefilled)
                if is_all or prefilled.has_first_token:
                    self._note_tokens(request)
                if is_all:
                    break
                prefilled.forget_answer()
            first = await self._decoded(request, prefilled)
            prefilled = None  # frees the block ids of a long prompt, which would stay in memory during the stream
            failed = first if isinstance(first, Decision) else await self._relay.run(request, first)
            if failed is None:
                break
            await self._apply(request, failed)
        request.on(Event.FINISHED if request.relayed_error is None else Event.FAILED)

    async def _prefilled(self, request: Exchange, route: Route) -> PrefillAnswer | Decision | None:
        """P's answer; the request is then held, unless the answer is whole. None: one worker is to do both legs."""
        if not request.asked.splits or request.goes_whole or route.single or request.lacks_one_token:
            return None
        if take_at_once(self._legs, request, route):
            return None
        answer = await self._make_attempt(PrefillAttempt(self._legs, request))
        if not (answer is None or isinstance(answer, Decision) or answer.is_whole(request.asked)):
            request.on(Event.PREFILLED)
        return answer

    async def _decoded(self, request: Exchange, prefilled: PrefillAnswer | None) -> bytes | Decision:
        """How D's answer begins, after as many D as it takes. ``prefilled`` None: the worker prefills too."""
        while True:
            outcome = await self._make_attempt(DecodeAttempt(self._legs, request, prefilled))
            assert outcome is not None, "each request needs a D"
            if not isinstance(outcome, Decision):
                if request.state is State.READING:
                    request.on(Event.FIRST_BYTE)
                self._note_tokens(request)
                request.body.forget_encoded()
                return outcome
            if outcome.next is not Next.SAME_BLOCKS and outcome.next is not Next.OTHER_WORKER:
                return outcome
            await self._apply(request, outcome)

    async def _make_attempt(self, attempt: LegAttempt[T]) -> T | Decision | None:
        """Make one attempt of a leg. None: the leg is not needed. Raises ApiError."""
        request = attempt.request
        try:
            if not await attempt.find():
                return None
            request.on(attempt.sent)
            try:
                return await attempt.ask()
            except (CallError, TryAnother) as error:
                return self._judge.failed(attempt, error)
        except BlocksLost as lost:
            return self._judge.blocks_lost(request, lost)

    async def _apply(self, request: Exchange, decision: Decision) -> None:
        """Make the transition that a decision names, and wait as long as it says. Raises the error of GIVE_UP."""
        if decision.is_over_budget:
            self._metrics.num_over_budget += 1
        if decision.error is not None:
            raise decision.error
        request.vacate()  # closes the connection: a worker that recovers can then do no harm
        if decision.next is Next.MIGRATE:
            request.sent_tokens.begun = True
            request.on(Event.STREAM_BROKE)
        elif decision.next is Next.PREFILL:
            if request.state is not State.PREFILLING:
                self._metrics.retries["prefill_again"] += 1
            request.held.drop_lease()
            request.on(Event.PREFILL_AGAIN)
        else:
            assert decision.next in (Next.SAME_BLOCKS, Next.OTHER_WORKER), decision
            request.on(Event.DECODE_AGAIN)
        if decision.wait_s:
            request.body.forget_encoded()
            await asyncio.sleep(decision.wait_s)

    def _note_tokens(self, request: Exchange) -> None:
        """Note that new tokens have come: if the stream had broken, it is continued now."""
        if request.attempts.continued():
            self._metrics.resumed["resumed"] += 1


async def _send_first_token(request: Exchange, prefilled: PrefillAnswer) -> bool:
    """Send the client P's token, if P has told it: as the first events of a stream or, if it ends the answer, as the
    whole answer. Returns True if that was the whole answer.
    """
    asked, reply, sent = request.asked, request.reply, request.sent_tokens
    is_whole = prefilled.is_whole(asked)
    if not (is_whole or prefilled.has_first_token):
        return False
    request.progress.num_tokens = request.progress.num_tokens + 1 if asked.stream else 1
    if not asked.stream:
        if is_whole:
            await reply.whole(200, JSON, prefilled.whole_body())
        return is_whole
    events = prefilled.first_events(asked, begun=sent.begun)
    if is_whole:
        await reply.write(events + sent.cached_as_first(prefilled.last_events(asked)))
        await reply.end()
        return True
    sent.created = prefilled.created
    if prefilled.kv_transfer_params is not None:
        prefilled.kv_transfer_params = sent.cached_as_first(prefilled.kv_transfer_params)
    sent.add(prefilled.summary.first_token)
    await reply.write(events, content=prefilled.shows(asked))
    return False


def _begin_anew_if_none_can_continue(request: Exchange) -> None:
    """Begin again from the first token if no worker can continue after the request's tokens, and the client has been
    sent none of them.

    Raises ApiError if it cannot begin again, and the router does not know which tokens the client has been sent.
    """
    sent = request.sent_tokens
    is_unknown = sent.ids() is None
    if not is_unknown and request.route() is not None:
        return
    if not request.reply.started and request.route(any_weights=True) is not None:
        request.reply.forget()
        sent.forget()
        request.progress.num_tokens = 0
    elif is_unknown:
        raise request.attempts.last_error or UpstreamError("Nobody knows which tokens the client has been sent.")
