"""A rank whose cache is a model of the real one: each slot holds a value that depends on the whole prefix up to it.

So a wrong block table, a block reused too early or a prefix shared wrongly changes what a row "attends" to, and is seen
at the row that does it. What is about to be written is poisoned from the moment the message arrives.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from baton_serve.core.protocol.steps import (
    CancelRead,
    NewSequence,
    PromptScores,
    Read,
    ReadResult,
    Row,
    Sampled,
    Step,
    StepResult,
    ToRank,
)
from baton_serve.workers.engine.blocks.block_pool import BlockPool

POISON = -1
_ENCODER = msgspec.msgpack.Encoder()
_DECODER: msgspec.msgpack.Decoder[ToRank] = msgspec.msgpack.Decoder(ToRank)


def is_writable(pool: BlockPool, block: int) -> bool:
    """The block has exactly one user, no lease, and no hash by which other sequences could share it."""
    return pool._users[block] == 1 and pool._holds[block] == 0 and pool._block_hashes[block] is None


def values(tokens: Sequence[int]) -> list[int]:
    """The cache's value at each position: a function of all tokens up to there."""
    out, value = [], 0
    for token in tokens:
        value = hash((value, token)) & 0xFFFF_FFFF
        out.append(value)
    return out


def next_token(value: int, vocab_size: int) -> int:
    """What is "sampled" after a position."""
    return value % vocab_size


def score(tokens: Sequence[int], start: int, end: int, num_top: int) -> tuple[list[float], list[int], list[list[int]]]:
    """Logprobs, ranks and most likely tokens at the places ``start`` to ``end`` of a prompt: each depends on all tokens
    before the place.
    """
    seen = values(tokens)
    places = range(start, end)
    tops = [[(seen[place - 1] + k) % 97 for k in range(num_top)] for place in places]
    return [-float(seen[place - 1] % 89) for place in places], [seen[place - 1] % 83 for place in places], tops


#: What a made-up P promises.
PROMISE = 7000


def remote_blocks(prompt: Sequence[int], block_size: int) -> list[int]:
    """Ids of a made-up P: block ``i`` of the prompt is ``1000 + i``."""
    return [1000 + index for index in range(-(-len(prompt) // block_size))]


@dataclass
class Record:
    """What a rank keeps of a sequence."""

    tokens: list[int]
    blocks: list[int]
    num_prompt: int
    num_top: int | None


class FakeRank:
    """Executes ``Step`` and ``Read`` in two halves: the message arrives, the result is made. A step that arrives during
    another one begins when that is finished.
    """

    def __init__(self, pool: BlockPool, vocab_size: int) -> None:
        self.pool = pool
        self.vocab_size = vocab_size
        self.slots = [[POISON] * pool.block_size for _ in range(pool.num_blocks)]
        self.versions = [0] * pool.num_blocks
        self.records: dict[int, Record] = {}
        self.step: Step | None = None
        self.ahead: Step | None = None
        self.reads: dict[int, Read] = {}
        self.known_reads: set[int] = set()
        self.cancelled: set[int] = set()

    def receive(self, message: ToRank) -> None:
        """A message arrives, through the wire format."""
        message = _DECODER.decode(_ENCODER.encode(message))
        if isinstance(message, Step) and self.step is not None:
            assert self.ahead is None, "three steps under way"
            self.ahead = message
        elif isinstance(message, Step):
            self._begin_step(message)
        elif isinstance(message, Read):
            self._begin_read(message)
        else:
            assert isinstance(message, CancelRead)
            assert message.read_id in self.known_reads, "cancelled a read that was never begun"
            assert message.read_id not in self.cancelled, "cancelled twice"
            self.cancelled.add(message.read_id)

    # --- steps --------------------------------------------------------------------------------------------------

    def _begin_step(self, step: Step) -> None:
        self.step = step
        self._store(step.fresh)
        for seq in step.dropped:
            del self.records[seq]
        for new in step.started:
            self._start(new)
        written: set[int] = set()
        for row in step.rows:
            written |= self._poison_row(row.seq, row.start, row.num_tokens, row.new_block_ids, written)

    def _store(self, fresh: list[tuple[int, int]]) -> None:
        for block, version in fresh:
            assert is_writable(self.pool, block)
            self.versions[block] = version

    def _start(self, new: NewSequence) -> None:
        tokens, num_top = [*new.prompt_token_ids, *new.output_token_ids], new.sampling.num_prompt_logprobs
        self.records[new.seq] = Record(tokens, list(new.block_ids), len(new.prompt_token_ids), num_top)

    def _poison_row(self, seq: int, start: int, num_tokens: int, new_blocks: list[int], written: set[int]) -> set[int]:
        record = self.records[seq]
        record.blocks += new_blocks
        assert num_tokens > 0
        assert start + num_tokens <= len(record.tokens)
        assert len(set(record.blocks)) == len(record.blocks)
        size = self.pool.block_size
        mine = {record.blocks[position // size] for position in range(start, start + num_tokens)}
        assert not mine & written, "two rows of one step write one block"
        for block in mine:
            assert is_writable(self.pool, block), f"block {block} is written, but is shared, leased or nobody's"
        for position in range(start, start + num_tokens):
            self.slots[record.blocks[position // size]][position % size] = POISON
        return mine

    def finish_step(self) -> StepResult:
        """Compute the step."""
        step = self.step
        assert step is not None
        self.step = None
        for row in step.rows:
            record = self.records[row.seq]
            assert self.content(record.blocks, row.start) == values(record.tokens[: row.start]), (
                f"sequence {row.seq} attends to something else than its own prefix"
            )
        sampled = []
        scores = [self._score(row) for row in step.rows if row.score_from]
        for row in step.rows:
            record = self.records[row.seq]
            end = row.start + row.num_tokens
            computed = values(record.tokens[:end])
            self.write(record.blocks, row.start, computed)
            if row.sample:
                assert end == len(record.tokens), "sampled in the middle of the record"
                record.tokens.append(next_token(computed[-1], self.vocab_size))
                sampled.append(Sampled(row.seq, record.tokens[-1]))
        if self.ahead is not None:
            step_ahead, self.ahead = self.ahead, None
            self._begin_step(step_ahead)
        return StepResult(step.step_id, sampled, 0.25, scores)

    def _score(self, row: Row) -> PromptScores:
        record = self.records[row.seq]
        assert record.num_top is not None, "scored a prompt of which nothing is wanted"
        end = min(row.start + row.num_tokens + 1, record.num_prompt)
        assert row.start < row.score_from < end, "a row scores what follows its own tokens"
        logprobs, ranks, tops = score(record.tokens, row.score_from, end, record.num_top)
        return PromptScores(row.seq, row.score_from, logprobs, ranks, tops, [[-1.0] * len(top) for top in tops])

    def content(self, blocks: Sequence[int], num_tokens: int) -> list[int]:
        """What the cache holds for a block table's first positions."""
        size = self.pool.block_size
        return [self.slots[blocks[position // size]][position % size] for position in range(num_tokens)]

    def write(self, blocks: Sequence[int], start: int, computed: Sequence[int]) -> None:
        """Fill the slots from ``start`` on with what belongs there."""
        size = self.pool.block_size
        for position in range(start, len(computed)):
            self.slots[blocks[position // size]][position % size] = computed[position]

    # --- reads --------------------------------------------------------------------------------------------------

    def _begin_read(self, read: Read) -> None:
        assert len(read.remote_block_ids) == len(read.local_block_ids)
        assert read.promise == PROMISE
        self._store(read.fresh)
        assert set(read.local_block_ids) <= {block for block, _ in read.fresh}
        assert read.read_id not in self.known_reads
        self.known_reads.add(read.read_id)
        self.reads[read.read_id] = read
        self._poison_read(read)

    def _poison_read(self, read: Read) -> None:
        for block in read.local_block_ids:
            assert is_writable(self.pool, block), f"block {block} went to somebody else while a read may write it"
            self.slots[block] = [POISON] * self.pool.block_size

    def finish_read(
        self, read_id: int, outcome: str, prompt: Sequence[int], stale: Sequence[int] | None = None
    ) -> ReadResult:
        """NIXL wrote to the very end. P's data are there if the outcome is ``done``, and after ``stale`` in the blocks
        that are not at the indexes ``stale`` of the read; None: in none, and it is not said which.
        """
        read = self.reads.pop(read_id)
        self._poison_read(read)
        is_read = outcome in ("done", "stale")
        bad = {read.local_block_ids[index] for index in stale or ()}
        if outcome == "done" or (outcome == "stale" and stale is not None):
            self._fill(read, prompt, bad)
        num_blocks = len(read.local_block_ids) if is_read else 0
        error = "" if outcome == "done" else f"it was {outcome}"
        return ReadResult(read_id, outcome, 100 * num_blocks, 0.5, error, num_blocks, sorted(bad))

    def _fill(self, read: Read, prompt: Sequence[int], bad: set[int]) -> None:
        computed, size = values(prompt), self.pool.block_size
        for remote, local in zip(read.remote_block_ids, read.local_block_ids, strict=True):
            start = (remote - 1000) * size
            if local not in bad:
                self.write([-1] * (remote - 1000) + [local], start, computed[: start + size])


class FakeGroup:
    """Ranks that compute and read each at its own pace; what is sent to a lagging one waits."""

    def __init__(self, ranks: Sequence[FakeRank]) -> None:
        self.ranks = ranks
        self.lagging: set[int] = set()
        self._inboxes: list[deque[ToRank]] = [deque() for _ in ranks]

    def send(self, message: ToRank) -> None:
        """To every rank, in one order."""
        for rank, inbox in enumerate(self._inboxes):
            inbox.append(message)
            if rank not in self.lagging:
                self.catch_up(rank)

    def catch_up(self, rank: int) -> None:
        """Everything that was sent arrives."""
        self.lagging.discard(rank)
        inbox = self._inboxes[rank] if rank < len(self.ranks) else ()
        while inbox:
            self.ranks[rank].receive(inbox.popleft())

    @property
    def computing(self) -> list[int]:
        """Ranks with a step under way."""
        return [number for number, rank in enumerate(self.ranks) if rank.step is not None]

    @property
    def reading(self) -> list[tuple[int, int]]:
        """Each rank with each of its reads."""
        return [(number, read_id) for number, rank in enumerate(self.ranks) for read_id in sorted(rank.reads)]
