"""The engine's interface for the HTTP server: one process, one asyncio loop, no torch.

EngineError                  the sequence cannot go on; its blocks are given back
├── RefusedError             the sequence was never started
│   ├── InvalidRequestError      token ids out of range, no prompt
│   ├── PromptTooLongError       longer than the model or the whole cache takes
│   ├── InvalidHandOffError      ``kv_transfer_params`` that contradict the request or themselves
│   ├── QueueFullError           too many sequences wait here already; retry later or elsewhere
│   └── DrainingError            this engine takes nothing new
├── AbortedError             it was aborted, or replaced by a newer one of the same request id
├── ReadFailedError          P could not be reached or read
└── EngineDeadError          a rank is gone, or hangs
    └── EngineGoneError          it was so before the request came
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
    """Why a sequence ended. ``STOP``: end-of-sequence or stop token; stop *strings* are found by the server."""

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
    #: D: read the blocks of prompt and ``output_token_ids`` from there, and continue after ``remote.first_token``.
    remote: KVTransferParams | None = None
    #: Output sampled on another worker (migration): the sequence continues after it as if it had been preempted here.
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
    """``max_waiting`` sequences wait already."""

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
    """The engine was dead before the request came, so the request never started and is not the cause."""

    code = "engine_gone"


class TokenStream(Protocol):
    """The tokens of one sequence, for one consumer; use it with ``contextlib.aclosing``.

    Cancelling ``anext`` loses no token and does not end the sequence; ``aclose`` ends it at once, in any state.
    """

    @property
    def is_refused(self) -> bool:
        """The sequence never started and has replaced no older one; the iterator raises why. Never changes."""

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

        It replaces an older sequence of the same request id, which is aborted as by ``abort``: a router that sends a
        request again has left the first answer, even if this worker has not noticed yet. If the new one is refused,
        the older one continues.
        Raises EngineError from the iterator, never after a token that carried ``finish``.
        """

    def abort(self, request_id: str) -> bool:
        """Stop the sequence wherever it is and free its blocks; False if there is none."""

    def abort_all(self, suffix: str) -> int:
        """The same for all sequences whose request id ends with ``suffix``; how many there were.

        Their router is gone. Requests with such an id that were still on their way are refused with AbortedError for
        ``core.protocol.router.REFUSE_GONE_S``.
        """

    def end_lease(self, lease_id: str) -> bool:
        """Release a hand-off's blocks (they stay in the prefix cache); False if there is no such lease."""

    def has_lease(self, lease_id: str) -> bool:
        """The lease holds blocks here."""

    def leases_of(self, request_id: str) -> list[str]:
        """The leases granted for the request that have not ended: one, or several if it was prefilled here again.

        A sequence that is handed off appears here in the same turn of the loop in which ``abort`` stops finding it.
        """

    def leases_with(self, suffix: str) -> list[str]:
        """The same for all requests whose id ends with ``suffix``."""

    def load(self) -> WorkerLoad:
        """How busy it is now."""
