"""What the HTTP front asks of an engine, and what comes back: one process, one asyncio loop, no torch.

EngineError                  the sequence cannot go on; its blocks are given back
├── RefusedError             never started: the request can not run here, now or ever
│   ├── InvalidRequestError      token ids out of range, no prompt
│   ├── PromptTooLongError       longer than the model or the whole cache takes
│   ├── InvalidHandOffError      ``kv_transfer_params`` that contradict the request or themselves
│   ├── QueueFullError           too many wait here already; another time, or another engine
│   └── DrainingError            this engine takes nothing new
├── AbortedError             somebody stopped it, or asked for it again
├── ReadFailedError          P could not be reached or read
└── EngineDeadError          a rank is gone, or hangs
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

import msgspec

from core.protocol.handoff import KVTransferParams
from core.protocol.steps import SamplingParams

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from core.protocol.worker import WorkerLoad


class FinishReason(StrEnum):
    """Why a sequence ended. ``STOP``: end-of-sequence or stop token; stop *strings* are found by the front."""

    STOP = "stop"
    LENGTH = "length"


class EngineRequest(msgspec.Struct, kw_only=True, frozen=True):
    """One sequence to run."""

    request_id: str
    prompt_token_ids: list[int]
    sampling: SamplingParams
    #: Upper bound of sampled tokens; ``output_token_ids`` and the first token of a hand-off included.
    max_tokens: int
    #: Sampling one of these ends the sequence (empty with ``ignore_eos``). The token is reported, not dropped.
    stop_token_ids: frozenset[int] = frozenset()
    #: Lower runs first, as with vLLM; then older.
    priority: int = 0
    #: P: after the first token pin the blocks under a lease and report a ``HandOff``.
    hand_off: bool = False
    #: D: read the blocks of prompt and ``output_token_ids`` from there and go on after ``params.first_token``.
    remote: KVTransferParams | None = None
    #: Sampled elsewhere before: the sequence goes on after them as if it had been preempted here.
    output_token_ids: list[int] = []


class HandOff(msgspec.Struct, frozen=True):
    """P's blocks, pinned under ``lease_id`` until ``Engine.end_lease``. One version per block, for the fence."""

    lease_id: str
    block_ids: list[int]
    versions: list[int]


class TokenOutput(msgspec.Struct, frozen=True):
    """One sampled token. The last one of a sequence carries ``finish``.

    ``hand_off`` comes with the only token of a ``hand_off`` request (``finish`` is LENGTH then), unless that token
    ended the sequence by itself: a stop token (STOP), or no room in the context for another one (LENGTH, without a
    ``hand_off``). Then nothing is pinned.
    """

    token: int
    logprob: float | None = None
    top: list[tuple[int, float]] | None = None
    finish: FinishReason | None = None
    hand_off: HandOff | None = None
    #: Prompt tokens that were found in the prefix cache (on the first output only).
    num_cached_tokens: int = 0


class EngineError(Exception):
    """The sequence cannot go on; its blocks are given back. ``code`` is stable, the message is for people."""

    code = "engine_error"


class RefusedError(EngineError):
    """The request never started."""

    code = "refused"


class InvalidRequestError(RefusedError):
    """Token ids out of range, an empty prompt, nothing left to sample."""

    code = "invalid_request"


class PromptTooLongError(RefusedError):
    """Prompt, outputs so far and one token more do not fit the model, or the whole cache."""

    code = "context_length_exceeded"


class InvalidHandOffError(RefusedError):
    """``kv_transfer_params`` that contradict the request or themselves."""

    code = "kv_params_invalid"


class QueueFullError(RefusedError):
    """As many wait as may; what runs has to get on first."""

    code = "queue_full"


class DrainingError(RefusedError):
    """The engine takes nothing new."""

    code = "draining"


class AbortedError(EngineError):
    """The sequence was aborted."""

    code = "aborted"


class ReadFailedError(EngineError):
    """P's blocks could not be read (handshake refused or timed out, P dead). Another D may still read them."""

    code = "kv_read_failed"


class EngineDeadError(EngineError):
    """A rank is gone, or hangs; the worker is about to exit."""

    code = "engine_dead"


class EngineGoneError(EngineDeadError):
    """The engine was dead when the request came, so the request had no part in that: it was never taken."""

    code = "engine_gone"


class TokenStream(Protocol):
    """The tokens of one sequence, for one consumer; use it with ``contextlib.aclosing``.

    Cancelling ``anext`` loses no token and does not end the sequence; ``aclose`` does, in one go and in any state.
    """

    @property
    def is_refused(self) -> bool:
        """The sequence never started, and has taken nobody's place; the first token raises why. It stays as it is."""

    def __aiter__(self) -> AsyncIterator[TokenOutput]:
        """Itself."""

    async def __anext__(self) -> TokenOutput:
        """The next token. Raises EngineError once, then StopAsyncIteration."""

    async def aclose(self) -> None:
        """Abort the sequence unless it has ended. Safe to call twice; never waits."""


class Engine(Protocol):
    """A running engine. All methods are called from its asyncio loop."""

    def submit(self, request: EngineRequest) -> TokenStream:
        """Queue a sequence at once; iterate its tokens. Closing the stream early aborts the sequence.

        It takes the place of an older sequence of the same request id, which is aborted as by ``abort``: whoever asks
        again has left that answer, maybe before anybody here could notice. If it is refused the older one goes on.
        Raises EngineError from the iterator, never after a token that carried ``finish``.
        """

    def abort(self, request_id: str) -> bool:
        """Stop the sequence wherever it is and free its blocks; False if there is none."""

    def abort_all(self, suffix: str) -> int:
        """The same for all sequences whose request id ends with ``suffix``; how many there were.

        Their sender is gone: a request of such an id that comes in the next moments was on its way, and is answered
        AbortedError (``core.protocol.router.REFUSE_GONE_S``).
        """

    def end_lease(self, lease_id: str) -> bool:
        """Unpin a hand-off's blocks (they stay cached by content); False if there is none."""

    def has_lease(self, lease_id: str) -> bool:
        """The lease holds blocks here."""

    def leases_of(self, request_id: str) -> list[str]:
        """The leases granted for the request that have not ended: one, or several if it was prefilled here again.

        A sequence that was handed off is found here from the turn on in which ``abort`` no longer finds it.
        """

    def leases_with(self, suffix: str) -> list[str]:
        """The same for all requests whose id ends with ``suffix``."""

    def load(self) -> WorkerLoad:
        """How busy it is now."""
