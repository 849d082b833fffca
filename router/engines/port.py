"""The interface of an engine: everything that a step of a request does differently for Baton's workers and vLLM's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol, TypeAlias

from baton_serve.core.leases.store import LeaseState
from baton_serve.core.net.client.errors import CallError
from baton_serve.core.protocol.errors import ApiError
from baton_serve.router.engines.legs import DecodeLeg, PrefillLeg
from baton_serve.router.engines.prefill_answer import PrefillAnswer
from baton_serve.router.pool import Worker
from baton_serve.router.pool.kind import EngineKind
from baton_serve.router.renewal.port import HeldLease
from baton_serve.router.request.bodies import ClientBody
from baton_serve.router.request.client_request import ClientRequest
from baton_serve.router.request.exchange import Exchange
from baton_serve.router.request.sent_tokens import SentTokens


class Engine(Protocol):
    """One kind of engine. Stateless but for the leases, so one object serves all workers of the kind."""

    def sent_tokens(self, body: ClientBody, max_event_bytes: int) -> SentTokens:
        """A record of the ids of the tokens that a client is sent, which it reads as these workers write them."""

    def hands_off(self, asked: ClientRequest) -> bool:
        """Whether P is asked to keep the blocks for a D."""

    def prefill_leg(self, request: Exchange, *, hand_off: bool) -> PrefillLeg:
        """What P is sent now: it is asked for one token, not streamed."""

    def prefill_answer(self, data: bytes, leg: PrefillLeg) -> PrefillAnswer:
        """Decode P's answer. Raises ValueError if it is none, or names a lease that another request holds."""

    def hold(self, answer: PrefillAnswer, on_over: Callable[[LeaseState], None] | None) -> HeldLease | None:
        """The lease of P's answer, renewed from now on; None if P granted none.

        ``on_over`` None: no D will read the blocks, so the lease is not renewed, only released.
        """

    def for_reader(self, answer: PrefillAnswer, reader: int) -> PrefillAnswer | None:
        """The answer for a choice that reads the blocks of another choice's ``answer`` as reader number ``reader``.

        None: this engine's blocks are for one reader.
        """

    def still_held(self, lease: HeldLease, worker: Worker) -> bool:
        """Whether what the D ``worker`` has read can be trusted: P keeps the blocks, or D has a fence."""

    def decode_leg(self, request: Exchange, prefilled: PrefillAnswer | None) -> DecodeLeg:
        """What D is sent. ``prefilled`` None: the worker prefills by itself."""

    def num_opening_events(self, request: Exchange) -> int:
        """How many events at the start of D's stream show that D has begun to decode."""

    def may_have_read(self, request: Exchange) -> bool:
        """Whether a D that has not answered may be computing already, and so is not given up while it lives."""

    def keeps_blocks(self, request: Exchange, error: CallError | ApiError) -> bool:
        """Whether another D can read P's blocks after a D has failed with ``error``."""


#: The implementation for the workers of each kind (``worker.kind.name``).
Engines: TypeAlias = "Mapping[EngineKind, Engine]"
