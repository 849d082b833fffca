"""The moves of a sequence, together with its blocks: placed, grown, preempted, handed off, gone.

Every end passes through ``leave``; no other line frees a sequence's blocks except ``preempt``.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from workers.engine.api import HandOff
from workers.engine.counters import Counters
from workers.engine.lease_index import Grant, LeaseIndex
from workers.engine.sequence_index import SequenceIndex
from workers.engine.sequence_state import Event

if TYPE_CHECKING:
    from workers.engine.block_pool import BlockPool
    from workers.engine.config import EngineConfig
    from workers.engine.sequence import Sequence


class SchedulerState:
    """What the parts of the scheduler share: sizes, blocks, sequences, counters."""

    def __init__(self, config: EngineConfig, pool: BlockPool) -> None:
        self.config = config
        self.pool = pool
        self.roster = SequenceIndex()
        self.counters = Counters()
        self.grants = LeaseIndex()
        #: Sequences the ranks still know and may forget.
        self.forgotten: list[int] = []

    def place(self, seq: Sequence) -> list[int] | None:
        """Give a queued sequence all blocks for its tokens; those that are fresh, or None for want of room."""
        contents = seq.contents(seq.num_matchable) if self.config.prefix_cache else []
        matched = self.pool.lookup(contents)
        num_fresh = seq.num_blocks_needed - len(matched)
        spare = self.config.num_spare_blocks if self.roster.num_seats_taken else 0
        if self.pool.num_available - self.pool.num_idle(matched) < num_fresh + spare:
            return None
        self.pool.share(matched)
        fresh = self.pool.allocate(num_fresh)
        seq.blocks = matched + fresh
        seq.num_named = len(matched)
        seq.num_computed = len(matched) * self.config.block_size
        self._count_hits(seq, len(contents) * self.config.block_size)
        return fresh

    def _count_hits(self, seq: Sequence, num_looked_for: int) -> None:
        self.counters.prefix_query_tokens += num_looked_for
        self.counters.prefix_hit_tokens += seq.num_computed
        if seq.num_cached < 0:
            seq.num_cached = min(seq.num_computed, seq.num_prompt)

    def grow(self, seq: Sequence) -> int | None:
        """One more block for a running sequence, taken from the least urgent one if need be; None: it was itself."""
        while self.pool.num_available == 0:
            victim = self.roster.running[-1]
            self.preempt(victim)
            if victim is seq:
                return None
        (block,) = self.pool.allocate(1)
        seq.blocks.append(block)
        return block

    def preempt(self, seq: Sequence) -> None:
        """Take a running sequence's blocks; it will compute all its tokens again. No step may be under way."""
        seq.advance(Event.PREEMPT)
        self.counters.preemptions += 1
        self.roster.remove_running(seq)
        self.pool.free(seq.blocks)
        seq.blocks = []
        seq.num_computed = seq.num_named = 0
        self.roster.queue.push(seq)

    def name_computed(self, seq: Sequence) -> None:
        """Tell the pool the content of blocks that have become full and computed."""
        num_full = seq.num_computed // self.config.block_size
        if num_full <= seq.num_named or not self.config.prefix_cache:
            return
        contents = seq.contents(num_full)
        for index in range(seq.num_named, num_full):
            self.pool.register(seq.blocks[index], contents[index])
        seq.num_named = num_full

    def hand_off(self, seq: Sequence, lease_id: str) -> HandOff:
        """End a sequence with its blocks held by a lease."""
        blocks, seq.blocks = seq.blocks, []
        versions = self.pool.lease(lease_id, blocks)
        self.grants.add(lease_id, Grant(seq.request.request_id, seq.tokens[: seq.num_prefilled]))
        self.counters.hand_offs += 1
        self.leave(seq, Event.HAND_OFF)
        return HandOff(lease_id=lease_id, block_ids=blocks, versions=versions)

    def end_lease(self, lease_id: str) -> bool:
        """Let go of a hand-off's blocks; False if there is no such lease."""
        ended = self.pool.end_lease(lease_id)
        self._note_end(lease_id, ended=ended)
        return ended

    def take_over(self, lease_id: str) -> list[int]:
        """End a lease and become a user of its blocks."""
        blocks = self.pool.take_over(lease_id)
        self._note_end(lease_id, ended=True)
        self.counters.take_overs += 1
        return blocks

    def _note_end(self, lease_id: str, *, ended: bool) -> None:
        self.grants.remove(lease_id)
        self.counters.leases_ended += ended

    def leave(self, seq: Sequence, event: Event) -> None:
        """The one exit: the sequence ends and its blocks go back. Nobody may still write them."""
        seq.advance(event)
        self.pool.free(seq.blocks)
        seq.blocks = []
        if seq.on_rank:
            self.forgotten.append(seq.id)
        self.roster.remove(seq)
        self.counters.ended[seq.state] += 1

    def check(self) -> None:
        """Sequences and blocks agree, and the ledger balances. O(total blocks). Raises LedgerError."""
        self.roster.check()
        self.grants.check()
        self.pool.check(Counter(block for seq in self.roster.by_id.values() for block in seq.blocks))
