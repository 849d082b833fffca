"""Hand-offs whose P and D are the same engine: the sequence takes over the lease's blocks, and nothing is read.

Such a sequence needs a slot but no blocks, and is admitted before the queue: sequences in the queue may be waiting for
the blocks that these leases hold. Reading into newly allocated blocks could need more blocks than the cache has.
"""

from __future__ import annotations

from baton_serve.workers.engine.scheduling.scheduler_state import SchedulerState
from baton_serve.workers.engine.sequences.sequence import Sequence
from baton_serve.workers.engine.sequences.sequence_state import Event


class LocalHandoff:
    """Admits the sequences of one engine that are AWAITING_HANDOFF."""

    def __init__(self, scheduler_state: SchedulerState) -> None:
        self._scheduler_state = scheduler_state
        self._read: list[str] = []

    def admit(self) -> bool:
        """Run the waiting sequences, most urgent first, while there are slots; True if at least one was started.

        A sequence is queued to compute its prompt, most of which may still be in the prefix cache, if its lease has
        ended, holds something else than the parameters say, or has several readers: each of them would write into the
        last block. A lease with one reader ends then.
        """
        sequences = self._scheduler_state.sequences
        admitted = False
        while (seq := sequences.awaiting_handoff.first) is not None:
            if not self._fits(seq):
                self._compute_instead(seq)
            elif sequences.num_slots_taken < self._scheduler_state.config.max_num_seqs:
                self._run(seq)
                admitted = True
            else:
                break
        return admitted

    def drain(self) -> list[str]:
        """The leases that sequences here took over, or do not need, since the last call, by what the readers call them:
        for the lease keeper. Those without other readers have ended.
        """
        leases, self._read = self._read, []
        return leases

    def _fits(self, seq: Sequence) -> bool:
        """Whether the lease holds what the parameters say, and P has sampled the first token."""
        remote = seq.remote
        grant = self._scheduler_state.leases.get(remote.lease_id)
        if grant is None or grant.num_readers > 1 or remote.first_token < 0:
            return False
        return (
            grant.token_ids == seq.tokens[: seq.num_prefilled]
            and grant.adapter == seq.request.adapter
            and remote.remote_block_ids[0] == grant.blocks
        )

    def _run(self, seq: Sequence) -> None:
        scheduler_state = self._scheduler_state
        scheduler_state.sequences.awaiting_handoff.discard(seq)
        seq.advance(Event.TAKE_OVER)
        seq.blocks = scheduler_state.take_over(seq.remote.lease_id)
        self._read.append(seq.remote.lease_id)
        seq.num_computed = seq.num_prefilled
        seq.num_cached = 0
        scheduler_state.register_computed(seq)
        scheduler_state.sequences.running.add(seq)

    def _compute_instead(self, seq: Sequence) -> None:
        scheduler_state = self._scheduler_state
        scheduler_state.sequences.awaiting_handoff.discard(seq)
        seq.advance(Event.LOSE)
        lease = seq.remote.lease_id
        if scheduler_state.leases.has_readers(lease) or scheduler_state.end_lease(lease):
            self._read.append(lease)
        scheduler_state.counters.local_prefills += 1
        scheduler_state.sequences.queue.add(seq)
