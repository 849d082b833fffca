"""The state that the parts of the scheduler share, and operations that change a sequence together with its blocks.

A sequence's blocks are freed in ``end_sequence`` and in ``preempt`` only; every sequence ends through ``end_sequence``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import chain

from baton_serve.workers.engine.api import HandOff
from baton_serve.workers.engine.blocks.block_pool import BlockPool
from baton_serve.workers.engine.blocks.lease_index import Grant
from baton_serve.workers.engine.config import EngineConfig
from baton_serve.workers.engine.counters import Counters
from baton_serve.workers.engine.sequences.sequence import Sequence
from baton_serve.workers.engine.sequences.sequence_index import SequenceIndex
from baton_serve.workers.engine.sequences.sequence_state import Event


class SchedulerState:
    """Sizes, blocks, sequences, leases and counters of one scheduler."""

    def __init__(self, config: EngineConfig, pool: BlockPool, new_lease_id: Callable[[], str]) -> None:
        self.config = config
        self.pool = pool
        self._new_lease_id = new_lease_id
        self.sequences = SequenceIndex()
        self.counters = Counters()
        self.leases = pool.leases
        #: Ids of sequences that have ended and that the ranks still know; the next step has the ranks drop them.
        self.to_drop: list[int] = []

    def allocate(self, seq: Sequence, num_kept: int = 0) -> list[int] | None:
        """Give a queued sequence blocks for all its tokens; returns the newly allocated ones, or None if there are too
        few. ``num_kept`` blocks are left for others.
        """
        matched = self._matched(seq)
        if not self._fits(seq, matched, num_kept):
            return None
        self.pool.share(matched)
        fresh = self.pool.allocate(seq.num_blocks_needed - len(matched))
        seq.blocks = matched + fresh
        seq.num_registered = len(matched)
        seq.num_computed = len(matched) * self.config.block_size
        if self.config.prefix_cache:
            self.counters.prefix_query_tokens += seq.num_matchable * self.config.block_size
        self.counters.prefix_hit_tokens += seq.num_computed
        if seq.num_cached < 0:
            seq.num_cached = min(seq.num_computed, seq.num_prompt)
        return fresh

    def has_room(self, seq: Sequence) -> bool:
        """Whether ``allocate`` would give the queued sequence its blocks now."""
        return self._fits(seq, self._matched(seq))

    def _matched(self, seq: Sequence) -> list[int]:
        """The blocks of the prefix cache that begin the sequence."""
        return self.pool.lookup(seq.block_hashes(seq.num_matchable)) if self.config.prefix_cache else []

    def _fits(self, seq: Sequence, matched: list[int], num_kept: int = 0) -> bool:
        num_fresh = seq.num_blocks_needed - len(matched) + num_kept
        spare = self.config.num_spare_blocks if self.sequences.num_slots_taken or num_kept else 0
        return self.pool.num_available - self.pool.num_idle(matched) >= num_fresh + spare

    def append_block(self, seq: Sequence) -> int | None:
        """Allocate one more block for a running sequence, and preempt the least urgent sequences while there is none.

        Returns the block, or None if ``seq`` itself was preempted.
        """
        while self.pool.num_available == 0:
            victim = self.sequences.running.last
            self.preempt(victim)
            if victim is seq:
                return None
        (block,) = self.pool.allocate(1)
        seq.blocks.append(block)
        return block

    def preempt(self, seq: Sequence) -> None:
        """Free a running sequence's blocks and queue it; it computes all its tokens again. No step may be under way."""
        seq.advance(Event.PREEMPT)
        self.counters.preemptions += 1
        self.sequences.running.discard(seq)
        self.pool.free(seq.blocks)
        seq.blocks = []
        seq.num_computed = seq.num_registered = 0
        self.sequences.queue.add(seq)

    def register_computed(self, seq: Sequence) -> None:
        """Register the hashes of blocks that have become full and computed."""
        num_full = seq.num_computed // self.config.block_size
        if num_full <= seq.num_registered or not self.config.prefix_cache:
            return
        block_hashes = seq.block_hashes(num_full)
        for index in range(seq.num_registered, num_full):
            self.pool.register(seq.blocks[index], block_hashes[index])
        seq.num_registered = num_full

    def hand_off(self, seq: Sequence) -> HandOff:
        """End a sequence, and keep its blocks under a lease."""
        lease_id = self._new_lease_id()
        blocks, seq.blocks = seq.blocks, []
        request, tokens = seq.request, seq.tokens[: seq.num_prefilled]
        grant = Grant(request.request_id, tokens, blocks, request.num_readers, adapter=request.adapter)
        promise = self.pool.lease(lease_id, grant)
        self.counters.hand_offs += 1
        self.end_sequence(seq, Event.HAND_OFF)
        return HandOff(lease_id=lease_id, block_ids=blocks, promise=promise)

    def end_lease(self, lease_id: str) -> bool:
        """Release the blocks of a hand-off; False if there is no such lease."""
        has_ended = self.pool.end_lease(lease_id)
        self.counters.leases_ended += has_ended
        return has_ended

    def take_over(self, lease_id: str) -> list[int]:
        """End a lease without freeing its blocks; returns them, for a sequence of this engine that will use them."""
        blocks = self.pool.take_over(lease_id)
        self.counters.leases_ended += 1
        self.counters.local_handoffs += 1
        return blocks

    def end_sequence(self, seq: Sequence, event: Event) -> None:
        """End a sequence by ``event`` and free its blocks. No step and no read may still write them."""
        seq.advance(event)
        self.pool.free(seq.blocks)
        seq.blocks = []
        if seq.on_rank:
            self.to_drop.append(seq.id)
        self.sequences.remove(seq)
        self.counters.ended[seq.state] += 1

    def finish(self, seq: Sequence) -> None:
        """End a sequence that has all of its tokens; with a step under way that may write its blocks, hide it until
        that has ended.
        """
        if seq.num_under_way:
            self.sequences.hide(seq)
            seq.advance(Event.FINISH_BUSY)
        else:
            self.end_sequence(seq, Event.FINISH)

    def fail(self, seq: Sequence) -> None:
        """End a sequence that cannot go on; with a step under way that may write its blocks, as ``finish`` does."""
        if seq.num_under_way:
            self.sequences.hide(seq)
            seq.advance(Event.GIVE_UP)
            seq.is_given_up = True
        else:
            self.end_sequence(seq, Event.FAIL)

    def check(self) -> None:
        """Check that sequences and blocks agree and that the ledger balances. O(total blocks). Raises LedgerError."""
        self.audit()()

    def audit(self) -> Callable[[], None]:
        """Check that the lists of sequences and leases agree. Returns the check of the blocks as they are now, O(total
        blocks), which any thread may call. Both raise LedgerError.
        """
        self.sequences.check()
        self.leases.check()
        pool, used = self.pool.copied(), [seq.blocks[:] for seq in self.sequences.by_id.values()]
        held = self.leases.blocks()
        return lambda: pool.check(Counter(chain.from_iterable(used)), held)
