"""Which blocks of a hand-off that has ended were still its own when a rank of D had read them."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from baton_serve.workers.vllm.fence.tables import MEMORY, descriptors
from baton_serve.workers.vllm.fence.transfer import Transfer
from baton_serve.workers.vllm.fence.words import WORD

if TYPE_CHECKING:
    from collections.abc import Sequence

    from baton_serve.workers.vllm.fence.block_words import BlockWords
    from baton_serve.workers.vllm.fence.tables import Agent, BlockTable

logger = logging.getLogger(f"vllm.{__name__}")  # vLLM shows its own loggers only


class ReadBlocks(NamedTuple):
    """The blocks of a hand-off that D reads, in the order of their tokens: P's ``remote[i]`` into D's ``local[i]``."""

    local: Sequence[int]
    remote: Sequence[int]


def read_blocks(local: Sequence[int], remote: Sequence[int]) -> ReadBlocks | None:
    """The blocks that D lacks, and all blocks of P: D reads the last ones of these. None if that cannot be."""
    if not 0 < len(local) <= len(remote):
        return None
    return ReadBlocks(local, remote[-len(local) :])


class Source(NamedTuple):
    """A rank of P that has ended a hand-off. ``stamp``: the last allocation before its end."""

    table: BlockTable
    stamp: int


@dataclass
class _Check:
    """``sources``: those that were not asked yet. ``num_kept``: as far as is known."""

    blocks: ReadBlocks
    sources: list[Source]
    num_kept: int
    stamp: int = 0
    under_way: Transfer | None = None


class BlockReads:
    """Reads the words of single blocks, from one rank of P after the other, as all of them have the same landings.

    It is done for the few hand-offs that had ended, so nothing is prepared for it when an engine is met.
    """

    def __init__(self, agent: Agent, words: BlockWords, errors: tuple[type[Exception], ...]) -> None:
        self._agent = agent
        self._words = words
        self._errors = errors
        self._checks: dict[str, _Check] = {}

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._checks

    def begin(self, request_id: str, blocks: ReadBlocks, sources: Sequence[Source]) -> None:
        """Ask which blocks were taken by another request, on any of these ranks."""
        self._checks[request_id] = _Check(blocks, list(sources), len(blocks.local))

    def num_kept(self, request_id: str) -> int | None:
        """How many of the blocks were the hand-off's own, from the first on; of those that cannot be told, none.

        None: ask again.
        """
        check = self._checks[request_id]
        if check.under_way is not None:
            if not check.under_way.is_over():
                return None
            self._conclude(check, check.under_way)
        if check.sources and check.num_kept:
            self._post(check, check.sources.pop())
            return None
        del self._checks[request_id]
        return check.num_kept

    def close(self) -> None:
        """Release everything that can be released."""
        for check in self._checks.values():
            if check.under_way is not None:
                check.under_way.abandon()
        self._checks.clear()

    def _post(self, check: _Check, source: Source) -> None:
        """Read the words of one rank."""
        local, remote = np.asarray(check.blocks.local), np.asarray(check.blocks.remote)
        if remote.min() < 0 or remote.max() >= source.table.num_blocks:
            check.num_kept = 0  # a client may have written the numbers
            return
        self._words.empty(check.blocks.local)
        agent = self._agent
        own = agent.get_xfer_descs(descriptors(self._words.landings_address, local, WORD.itemsize), MEMORY)
        theirs = agent.get_xfer_descs(descriptors(source.table.address, remote, WORD.itemsize), MEMORY)
        try:
            handle = agent.initialize_xfer("READ", own, theirs, source.table.agent_name)
        except self._errors as error:
            check.num_kept = 0
            logger.warning("The words of blocks cannot be read: %s", error)
            return
        check.stamp = source.stamp
        check.under_way = Transfer(agent, handle, self._errors)
        check.under_way.begin()

    def _conclude(self, check: _Check, transfer: Transfer) -> None:
        check.under_way = None
        if transfer.failed:
            check.num_kept = 0
            return
        taken = self._words.landed(check.blocks.local) > check.stamp
        if taken.any():
            check.num_kept = min(check.num_kept, int(taken.argmax()))
