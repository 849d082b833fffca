"""How a rank of D checks the fence once it has read the blocks of a hand-off."""

from __future__ import annotations

import contextlib
import enum
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from baton_serve.workers.vllm.fence.block_reads import BlockReads, Source
from baton_serve.workers.vllm.fence.tables import OWN_SIDE, prepare
from baton_serve.workers.vllm.fence.transfer import Transfer
from baton_serve.workers.vllm.fence.words import ENDED

if TYPE_CHECKING:
    from collections.abc import Iterable

    from baton_serve.workers.vllm.fence.block_reads import ReadBlocks
    from baton_serve.workers.vllm.fence.block_words import BlockWords
    from baton_serve.workers.vllm.fence.promises import Promise
    from baton_serve.workers.vllm.fence.tables import Agent, Tables
    from baton_serve.workers.vllm.fence.words import Words

logger = logging.getLogger(f"vllm.{__name__}")  # vLLM shows its own loggers only

#: Polls of the checks under way before they wait for the next step: a word comes within microseconds, while a step of
#: a D that decodes takes milliseconds.
NUM_POLLS = 64


class Verdict(enum.StrEnum):
    """What became of the check of one hand-off."""

    #: P had not ended the hand-off when its blocks had been read.
    KEPT = "kept"
    #: P had ended the hand-off, and no other request had taken any of its blocks.
    LATE = "late"
    #: Another request had taken one of its blocks.
    STALE = "stale"
    #: P had ended the hand-off. Whether others had taken its blocks cannot be told.
    ENDED = "ended"
    #: The hand-off came without a promise that fits P's tables.
    UNPROMISED = "unpromised"
    #: The words could not be read.
    FAILED = "failed"


class Finding(NamedTuple):
    """A verdict, and how many of the blocks that were read are good, from the first on. None: all of them."""

    verdict: Verdict
    num_good: int | None = 0


@dataclass
class _Expected:
    """What is known of a hand-off while its blocks are read: the promise, and which ranks they are read from.

    ``blocks``: those that are read; None where single blocks are not told apart.
    """

    promise: Promise | None
    blocks: ReadBlocks | None
    engine_id: str = ""
    ranks: list[int] = field(default_factory=list)


@dataclass
class _Check:
    """The check of one hand-off. ``sides``: the slots of the ranks that were read from."""

    promise: Promise
    sides: list[int]
    landings: list[int] = field(default_factory=list)
    transfers: list[Transfer] = field(default_factory=list)
    failed: bool = False


class FenceReads:
    """The hand-offs that one rank reads, and their checks. ``errors``: what NIXL raises."""

    def __init__(
        self, agent: Agent, words: Words, blocks: BlockWords, tables: Tables, errors: tuple[type[Exception], ...]
    ) -> None:
        self._agent = agent
        self._words = words
        self._tables = tables
        self._errors = errors
        self._own = prepare(agent, OWN_SIDE, words.address, len(words.array))
        self._expected: dict[str, _Expected] = {}
        self._checks: dict[str, _Check] = {}
        self._block_reads = BlockReads(agent, blocks, errors)

    def expect(self, request_id: str, promise: Promise | None, blocks: ReadBlocks | None = None) -> None:
        """The request's blocks will be read, and were handed off with this promise.

        ``blocks``: those that will be read; None: D cannot keep some of them and lose others.
        """
        self._expected[request_id] = _Expected(promise, blocks)

    def reads_from(self, request_id: str, engine_id: str, rank: int, *, by_block: bool = True) -> None:
        """Blocks of an expected request are being read from this rank, whose engine has a table.

        ``by_block``: P's blocks are as large as D's, so that it makes sense to ask for single ones.
        """
        expected = self._expected[request_id]
        expected.engine_id = engine_id
        expected.ranks.append(rank)
        if not by_block:
            expected.blocks = None

    def forget(self, request_id: str) -> None:
        """The request is not read any more. Does nothing for one that was not expected."""
        self._expected.pop(request_id, None)

    def settle(self, request_ids: Iterable[str]) -> dict[str, Finding | None]:
        """Begin or go on to check requests whose blocks have all been read. None: ask again in the next step.

        A request that was read from no engine with a table has nothing to check, and is left out.
        """
        findings: dict[str, Finding | None] = {}
        for request_id in request_ids:
            if request_id in self._checks or request_id in self._block_reads:
                findings[request_id] = None
            elif (expected := self._expected.get(request_id)) is not None and expected.ranks:
                findings[request_id] = self._begin(request_id, expected)
        waiting = [request_id for request_id, finding in findings.items() if finding is None]
        for _ in range(NUM_POLLS):
            if not waiting:
                break
            findings |= {request_id: self._poll(request_id) for request_id in waiting}
            waiting = [request_id for request_id in waiting if findings[request_id] is None]
        return findings

    def close(self) -> None:
        """Release everything that can be released."""
        for check in self._checks.values():
            for transfer in check.transfers:
                transfer.abandon()
        self._checks.clear()
        self._block_reads.close()
        with contextlib.suppress(*self._errors):
            self._agent.release_dlist_handle(self._own.handle)

    def _begin(self, request_id: str, expected: _Expected) -> Finding | None:
        if expected.promise is None:
            return Finding(Verdict.UNPROMISED)
        sides = [self._tables.side(expected.engine_id, rank, expected.promise.slot) for rank in expected.ranks]
        known = [side for side in sides if side is not None]
        if len(known) < len(sides):
            return Finding(Verdict.UNPROMISED)
        self._checks[request_id] = check = _Check(expected.promise, known)
        self._post(check)
        return None

    def _post(self, check: _Check) -> None:
        """Begin the reads, if there are landings for them. One that cannot be begun fails the check."""
        landings = self._words.take_landings(len(check.sides))
        if landings is None:
            return
        check.landings = landings
        for side, landing in zip(check.sides, landings, strict=True):
            try:
                handle = self._agent.make_prepped_xfer("READ", self._own.handle, [landing], side, [check.promise.slot])
            except self._errors as error:
                check.failed = True
                logger.warning("The fence of a hand-off cannot be read: %s", error)
                continue
            transfer = Transfer(self._agent, handle, self._errors)
            check.transfers.append(transfer)
            transfer.begin()

    def _poll(self, request_id: str) -> Finding | None:
        if request_id in self._block_reads:
            return self._poll_blocks(request_id)
        check = self._checks[request_id]
        if not check.landings:
            self._post(check)
            return None
        over = [transfer for transfer in check.transfers if transfer.is_over()]
        check.failed |= any(transfer.failed for transfer in over)
        check.transfers = [transfer for transfer in check.transfers if transfer not in over]
        if check.transfers:
            return None
        slots = self._words.array[check.landings].tolist()
        self._words.free_landings(check.landings)
        del self._checks[request_id]
        if check.failed:
            return Finding(Verdict.FAILED)
        return self._judge(request_id, check.promise.word, slots)

    def _judge(self, request_id: str, word: int, slots: list[list[int]]) -> Finding | None:
        """``slots``: word and stamp of each rank that was read from. None: the words of single blocks are read now.

        A slot that has the word of another hand-off has lost its stamp. Or the promise was never P's, but a client's:
        then no block that it names is believed.
        """
        expected = self._expected[request_id]
        ended = [
            (rank, found, stamp) for rank, (found, stamp) in zip(expected.ranks, slots, strict=True) if found != word
        ]
        if not ended:
            return Finding(Verdict.KEPT, None)
        sources = [
            Source(table, stamp)
            for rank, found, stamp in ended
            if found == word | ENDED and (table := self._tables.blocks(expected.engine_id, rank)) is not None
        ]
        if expected.blocks is None or len(sources) < len(ended):
            return Finding(Verdict.ENDED)
        self._block_reads.begin(request_id, expected.blocks, sources)
        return None

    def _poll_blocks(self, request_id: str) -> Finding | None:
        num_kept = self._block_reads.num_kept(request_id)
        if num_kept is None:
            return None
        blocks = self._expected[request_id].blocks
        assert blocks is not None
        if num_kept == len(blocks.local):
            return Finding(Verdict.LATE, None)
        return Finding(Verdict.STALE, num_kept)
