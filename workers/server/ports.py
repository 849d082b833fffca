"""What the HTTP server calls of an engine and of P's leases."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from baton_serve.core.protocol.openai.structured import Form
    from baton_serve.workers.engine.api import Engine
    from baton_serve.workers.engine.counters import EngineStats
    from baton_serve.workers.grammar.rank_grammars import HeldGrammar


class ObservableEngine(Protocol):
    """What the HTTP server calls in addition to ``api.Engine``; ``AsyncEngine`` implements it."""

    def stats(self) -> EngineStats:
        """All numbers of the engine."""

    def audit(self) -> Callable[[], None]:
        """A check of the block counts as they are now, which any thread may call. Both calls raise EngineFault if
        something does not add up.
        """

    def begin_drain(self) -> None:
        """Refuse new requests."""


class Grammars(Protocol):
    """What the HTTP server calls for structured output; ``GrammarCompiler`` implements it."""

    async def hold(self, form: Form, client: str) -> HeldGrammar:
        """The grammar of a client's form, which the engine's ranks have until it is released. ``client``: see
        ``core/protocol/client_key.py``. Raises BadRequestError that says what is wrong, and
        RateLimitError where too many forms wait.

        Cancelling the call does not disturb others for an equal form.
        """


class LeaseControl(Protocol):
    """What the HTTP server calls of P's leases; ``EngineLeases`` implements it."""

    def grant(self, lease_id: str) -> bool:
        """Grant the lease, of which the store is told in the background. False if it has ended already, so that its
        blocks are free.
        """

    def drop(self, lease_id: str) -> None:
        """End a lease that no D will read: unpin its blocks now, and end it in the store too. Never raises."""

    def release(self, lease_ids: Iterable[str]) -> int:
        """Drop these leases; returns how many of them there were."""

    def held(self, lease_ids: Iterable[str]) -> list[str]:
        """Those of these leases that keep blocks, each once."""

    def drop_request(self, request_id: str) -> bool:
        """Drop all leases of the request; False if there are none."""

    def drop_older(self, request_id: str, but: str) -> None:
        """Drop the leases of the request except ``but``, and except those that other choices read as well."""

    def note_read(self, lease_id: str) -> None:
        """Note that the first reader of the lease has read, or need not."""

    def drop_all(self, suffix: str) -> int:
        """Drop all leases of requests whose id ends with ``suffix``; returns their number."""


if TYPE_CHECKING:

    class ServedEngine(Engine, ObservableEngine, Protocol):
        """The engine as requests and pages use it."""
