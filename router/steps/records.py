"""Makes the record of an admitted request, and of each of its choices if it is for several answers."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from baton_serve.core.protocol.choice import Choice
from baton_serve.core.protocol.openai.choices import Choices
from baton_serve.router.engines.port import Engines
from baton_serve.router.placement import Prompt
from baton_serve.router.pool import Route, WorkerPool
from baton_serve.router.pool.route import RequestRoute
from baton_serve.router.queue.retry_budget import RetryBudget
from baton_serve.router.request.active import ActiveRequests
from baton_serve.router.request.attempts import Attempts, Limits
from baton_serve.router.request.bodies import ClientBody
from baton_serve.router.request.choices.merging import ChoiceEvents
from baton_serve.router.request.choices.plan import choice_id, planned
from baton_serve.router.request.choices.reply import AnswerBudget, ChoiceReply
from baton_serve.router.request.choices.shared_prefill import ChoiceRole, SharedPrefill
from baton_serve.router.request.choices.whole import WholeRequest
from baton_serve.router.request.client_request import ClientRequest
from baton_serve.router.request.exchange import Exchange, LiveRequest
from baton_serve.router.request.held import Releaser
from baton_serve.router.request.reply import ClientReply, Reply
from baton_serve.router.request.sent_tokens import SentTokens
from baton_serve.router.settings import RouterSettings
from baton_serve.router.steps.prefill import SharedAnswer


@dataclass(slots=True)
class RecordMaker:
    """Makes the records of a router's requests. ``clock``: the event loop's, seconds."""

    settings: RouterSettings
    active: ActiveRequests
    pool: WorkerPool
    engines: Engines
    #: Bounds the attempts of each request; ``retry_budget`` bounds the retries of all together.
    limits: Limits
    retry_budget: RetryBudget
    releaser: Releaser
    clock: Callable[[], float]

    def new(
        self,
        request_id: str,
        asked: ClientRequest,
        route: Route,
        body: ClientBody,
        reply: ClientReply,
    ) -> LiveRequest:
        """The record of a request. ``route``: the workers that may serve it now."""
        if asked.choices is None:
            return self._one(request_id, asked, route, body, reply)
        return self._several(request_id, asked, asked.choices, route, body, reply)

    def _one(
        self,
        request_id: str,
        asked: ClientRequest,
        route: Route,
        body: ClientBody,
        reply: Reply,
        prompt: Prompt | None = None,
    ) -> Exchange:
        """``prompt``: the one of another choice with the same prompt; None: the request makes its own."""
        return Exchange(
            request_id,
            self.active.next_number(),
            asked,
            body,
            reply,
            self._sent_tokens(asked, route, body),
            Attempts(self.limits, self.retry_budget),
            RequestRoute(self.pool.candidates, asked.model, route),
            self.releaser,
            self.clock,
            prompt,
        )

    def _sent_tokens(self, asked: ClientRequest, route: Route, body: ClientBody) -> SentTokens:
        """The recorder of the answer's tokens. vLLM's servers name tokens in another way than Baton's workers."""
        max_event_bytes = self.settings.max_event_bytes
        if not asked.stream or route.kind is None:  # of workers of several kinds, only Baton's name tokens
            return SentTokens(max_event_bytes)
        return self.engines[route.kind.name].sent_tokens(body, max_event_bytes)

    # --- several answers

    def _several(
        self,
        request_id: str,
        asked: ClientRequest,
        choices: Choices,
        route: Route,
        body: ClientBody,
        reply: ClientReply,
    ) -> WholeRequest:
        exchanges: list[Exchange] = []
        created, share = int(time.time()), body.num_bytes // choices.num_computed
        room = AnswerBudget(self.settings.max_answer_bytes)
        shared: SharedPrefill[SharedAnswer] | None = None
        lead: Exchange | None = None
        for place, fields in enumerate(planned(choices, body.fields)):
            if lead is None or place % choices.best_of == 0:
                lead, shared = None, _shared(asked, choices)
            role = ChoiceRole(Choice(request_id, place, created), shared)
            events = ChoiceEvents(role.choice, "chatcmpl-" if asked.chat else "cmpl-")
            exchange = self._one(
                choice_id(request_id, place),
                asked,
                route,
                ClientBody(fields, share, None if lead is None else lead.body),
                ChoiceReply(reply, events, room, role),
                None if lead is None else lead.prompt,
            )
            exchange.choice = role
            lead = lead or exchange
            exchanges.append(exchange)
        return WholeRequest(request_id, asked, choices, reply, exchanges, self.clock)


def _shared(asked: ClientRequest, choices: Choices) -> SharedPrefill[SharedAnswer] | None:
    """What the choices of a prompt share; None: there is only one, or P answers each of them whole."""
    is_shared = choices.best_of > 1 and asked.splits and asked.max_new_tokens != 1
    return SharedPrefill(choices.best_of) if is_shared else None
