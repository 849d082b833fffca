"""What the HTTP front asks of an engine, and what comes back: one process, one asyncio loop, no torch."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

import msgspec

from protocol.handoff import KVTransferParams
from protocol.steps import SamplingParams

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from protocol.worker import WorkerLoad


class FinishReason(StrEnum):
    """Why a sequence ended. ``STOP``: end-of-sequence or stop token; stop *strings* are found by the front."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


class EngineRequest(msgspec.Struct, kw_only=True, frozen=True):
    """One sequence to run."""

    request_id: str
    prompt_token_ids: list[int]
    sampling: SamplingParams
    #: Upper bound of sampled tokens, the first token of a hand-off included.
    max_tokens: int
    #: Sampling one of these ends the sequence (empty with ``ignore_eos``). The token is reported, not dropped.
    stop_token_ids: frozenset[int] = frozenset()
    #: Higher runs first; then older.
    priority: int = 0
    #: P: after the first token pin the blocks under a lease and report a ``HandOff``.
    hand_off: bool = False
    #: D: read the prompt's blocks from there and go on after ``params.first_token``.
    remote: KVTransferParams | None = None


class HandOff(msgspec.Struct, frozen=True):
    """P's blocks, pinned under ``lease_id`` until ``Engine.end_lease``. One version per block, for the fence."""

    lease_id: str
    block_ids: list[int]
    versions: list[int]


class TokenOutput(msgspec.Struct, frozen=True):
    """One sampled token. The last one of a sequence carries ``finish``.

    ``hand_off`` comes with the only token of a ``hand_off`` request, unless that token ended the sequence by itself
    (``finish`` is STOP): then nothing is pinned.
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


class AbortedError(EngineError):
    """The sequence was aborted."""

    code = "aborted"


class ReadFailedError(EngineError):
    """P's blocks could not be read (handshake refused or timed out, P dead). Another D may still read them."""

    code = "kv_read_failed"


class EngineDeadError(EngineError):
    """A rank is gone; the worker is about to exit."""

    code = "engine_dead"


class Engine(Protocol):
    """A running engine. All methods are called from its asyncio loop."""

    def submit(self, request: EngineRequest) -> AsyncIterator[TokenOutput]:
        """Queue a sequence; iterate its tokens. Closing the iterator early aborts the sequence.

        Raises EngineError from the iterator, never after a token that carried ``finish``.
        """

    def abort(self, request_id: str) -> bool:
        """Stop the sequence wherever it is and free its blocks; False if there is none."""

    def end_lease(self, lease_id: str) -> bool:
        """Unpin a hand-off's blocks (they stay cached by content); False if there is none."""

    def oldest_lease(self) -> str | None:
        """The lease that was granted first, for giving up under memory pressure."""

    def load(self) -> WorkerLoad:
        """How busy it is now."""
