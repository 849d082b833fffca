"""The engine's interface for the HTTP server: one process, one asyncio loop, no torch.

EngineError                  the sequence cannot continue; its blocks are released
├── RefusedError             the sequence was never started
│   ├── PromptTooLongError       prompt, outputs so far and one more exceed the model's context or the whole cache
│   ├── InvalidHandOffError      ``kv_transfer_params`` that contradict the request or themselves
│   ├── OtherAdapterError        P's blocks are of another adapter than the request's; another D may read them
│   ├── QueueFullError           ``max_waiting`` sequences wait here already; retry later or elsewhere
│   └── DrainingError            this engine accepts no new requests
├── AbortedError             the sequence was aborted, or replaced by a newer one of the same request id
├── GrammarFailedError       the output cannot go on as its grammar says, which has become too complex to follow
├── ReadFailedError          P could not be reached or read (handshake refused, P dead); another D may read it
└── EngineDeadError          a rank is gone, or hangs; the worker is about to exit
    └── EngineGoneError          the engine was dead before the request came, so the request is not the cause
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from enum import StrEnum
from typing import Protocol

import msgspec

from baton_serve.core.leases.store import LeaseState
from baton_serve.core.protocol.handoff import KVTransferParams
from baton_serve.core.protocol.steps import PromptScores, SamplingParams
from baton_serve.core.protocol.worker import WorkerLoad
from baton_serve.workers.engine.blocks.lease_index import LeaseIndex
from baton_serve.workers.engine.counters import EngineStats


class FinishReason(StrEnum):
    """Why a sequence ended. ``STOP``: end-of-sequence or stop token; stop *strings* are found by the server."""

    STOP = "stop"
    LENGTH = "length"


class EngineRequest(msgspec.Struct, kw_only=True, frozen=True):
    """One sequence to run."""

    request_id: str
    prompt_token_ids: list[int]
    sampling: SamplingParams
    #: Upper bound of sampled tokens, including ``output_token_ids`` and the first token of a hand-off. 0: the sequence
    #: ends when its prompt is computed.
    max_tokens: int
    #: Sampling one of these tokens ends the sequence (empty with ``ignore_eos``). That token is reported, not dropped.
    stop_token_ids: frozenset[int] = frozenset()
    #: Sequences with a lower priority value run first, as with vLLM; among equals, older ones.
    priority: int = 0
    #: On P: after the first token pin the blocks under a lease and report a ``HandOff``.
    hand_off: bool = False
    #: On P: how many choices of one request read the blocks. The lease of several ends when each has read; it is also
    #: kept if the first token ends the sequence, since the others have first tokens of their own.
    num_readers: int = 1
    #: On D: read the blocks of prompt and ``output_token_ids`` from P, and continue after ``remote.first_token``.
    remote: KVTransferParams | None = None
    #: Output sampled on another worker (migration): the sequence continues after it as if it had been preempted here.
    output_token_ids: list[int] = []
    #: Blocks are shared with requests of the same salt only.
    cache_salt: str = ""
    #: What the outputs must follow, as ``NewSequence.grammar``; the ranks can compile it. "": no grammar.
    grammar: str = ""
    #: Fingerprint of the adapter that computes it; "": the model without an adapter.
    adapter: str = ""


class HandOff(msgspec.Struct, frozen=True):
    """P's blocks, pinned under ``lease_id`` until ``Engine.end_lease``. ``promise``: see ``KVTransferParams``."""

    lease_id: str
    block_ids: list[int]
    promise: int


class TokenOutput(msgspec.Struct, frozen=True):
    """One sampled token. The last token of a sequence has ``finish`` set.

    The only token of a ``hand_off`` request has ``hand_off`` set, and ``finish`` is LENGTH. If that token ends the
    sequence by itself, as a stop token (STOP) or because the context has no room for another one (LENGTH), then
    ``hand_off`` is None and nothing is pinned. With several readers ``hand_off`` is set with STOP too.
    """

    token: int
    logprob: float | None = None
    top: list[tuple[int, float]] | None = None
    finish: FinishReason | None = None
    hand_off: HandOff | None = None
    #: Prompt tokens that were found in the prefix cache (on the first output only).
    num_cached_tokens: int = 0


class PromptOutput(msgspec.Struct, frozen=True):
    """Logprobs of some tokens of the prompt, or the end of a sequence that samples nothing.

    With ``SamplingParams.num_prompt_logprobs`` each token of the prompt but the first comes in one of them, in order
    and before the first ``TokenOutput``, also if the sequence is preempted meanwhile.
    """

    scores: PromptScores | None = None
    finish: FinishReason | None = None
    #: As of ``TokenOutput``; on the output with ``finish`` only.
    num_cached_tokens: int = 0


class EngineError(Exception):
    """The sequence cannot continue; its blocks are released. ``code`` is stable, the message is for people."""

    code = "engine_error"


class RefusedError(EngineError):
    code = "refused"


class PromptTooLongError(RefusedError):
    code = "context_length_exceeded"


class InvalidHandOffError(RefusedError):
    code = "kv_params_invalid"


class OtherAdapterError(RefusedError):
    code = "other_adapter"


class QueueFullError(RefusedError):
    code = "queue_full"


class DrainingError(RefusedError):
    code = "draining"


class AbortedError(EngineError):
    code = "aborted"


class GrammarFailedError(EngineError):
    code = "grammar_failed"


class ReadFailedError(EngineError):
    code = "kv_read_failed"


class EngineDeadError(EngineError):
    code = "engine_dead"


class EngineGoneError(EngineDeadError):
    code = "engine_gone"


class TokenStream:
    """The tokens of one sequence, for one consumer; use it with ``contextlib.aclosing``.

    ``on_close`` is called once, if the consumer closes the stream before its end. Cancelling ``anext`` loses no token
    and does not end the sequence. The queue's length is bounded by the tokens of the sequence.
    """

    def __init__(self, on_close: Callable[[], None] = lambda: None) -> None:
        self._on_close = on_close
        self._items: deque[TokenOutput | PromptOutput | EngineError] = deque()
        self._waiter: asyncio.Future[None] | None = None
        #: Whether the last item was put or the stream was closed; no further item is accepted.
        self._complete = False
        #: Whether the sequence never started and replaced no older one; the iterator raises the reason.
        self.is_refused = False

    @classmethod
    def refused(cls, error: EngineError) -> TokenStream:
        stream = cls()
        stream.is_refused = True
        stream.put(error)
        return stream

    def put(self, item: TokenOutput | PromptOutput | EngineError) -> None:
        """Add an item. An error, or an output with ``finish``, is the last item; later ones are dropped."""
        if self._complete:
            return
        self._items.append(item)
        self._complete = isinstance(item, EngineError) or item.finish is not None
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def __aiter__(self) -> TokenStream:
        return self

    async def __anext__(self) -> TokenOutput | PromptOutput:
        """The next token, or what there is of the prompt before the first one.

        Raises EngineError once, then StopAsyncIteration.
        """
        while not self._items:
            if self._complete:
                raise StopAsyncIteration
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        item = self._items.popleft()
        if isinstance(item, EngineError):
            raise item
        return item

    async def aclose(self) -> None:
        """Abort the sequence at once, unless it has ended, and drop what was not consumed. Never suspends."""
        self._items.clear()
        if self._complete:
            return
        self._complete = True
        self._wake()
        self._on_close()


class Engine(Protocol):
    """A running engine, as the HTTP server uses it. All methods are called from its asyncio loop."""

    @property
    def leases(self) -> LeaseIndex:
        """The leases that hold blocks here. They change by ``end_lease`` and ``note_read`` only.

        The lease of a sequence that is handed off appears here in the same turn of the loop in which ``abort`` stops
        finding the sequence.
        """

    def submit(self, request: EngineRequest) -> TokenStream:
        """Queue a sequence at once; returns its tokens. Closing the stream early aborts the sequence.

        An older sequence of the same request id is aborted as by ``abort``: a router that sends a request again no
        longer reads the first answer, even if this worker has not noticed yet. If the new sequence is refused, the
        older one continues.
        The iterator raises EngineError, never after an output with ``finish``.
        """

    def abort(self, request_id: str) -> bool:
        """Abort the sequence in any state and free its blocks; False if there is none."""

    def abort_all(self, suffix: str) -> int:
        """Abort all sequences whose request id ends with ``suffix``; returns their number.

        Their router is gone. Requests with such an id that arrive within ``core.protocol.router.REFUSE_GONE_S`` are
        refused with AbortedError.
        """

    def end_lease(self, lease_id: str, how: LeaseState) -> bool:
        """Release a hand-off's blocks (they stay in the prefix cache); False if there is no such lease.

        ``how``: DONE if D has read them, RELEASED if no D will, EXPIRED if nobody has renewed the lease.
        """

    def note_read(self, name: str) -> None:
        """Note that a reader has read a lease's blocks; the lease is over when all of its readers have.

        ``name``: what the reader calls the lease (``core.protocol.handoff.reader_name``).
        """

    def load(self) -> WorkerLoad:
        """The engine's load now."""

    def stats(self) -> EngineStats:
        """All numbers of the engine."""

    def audit(self) -> Callable[[], None]:
        """A check of the block counts as they are now, which any thread may call. Both calls raise EngineFault if
        something does not add up.
        """
