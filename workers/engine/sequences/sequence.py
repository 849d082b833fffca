"""One sequence: its tokens, its block table, and how many of its tokens are computed."""

from __future__ import annotations

from baton_serve.core.protocol.handoff import KVTransferParams
from baton_serve.workers.engine.api import EngineRequest
from baton_serve.workers.engine.blocks.block_hash import first_parent, hash_blocks
from baton_serve.workers.engine.config import EngineConfig
from baton_serve.workers.engine.sequences.sequence_state import Event, State, next_state


class Sequence:
    """One sequence, made from a request that has passed validation. Only ``advance`` changes ``state``.

    ``tokens`` are prompt and outputs; ``blocks`` is the block table, which holds the keys and values of the first
    ``num_computed`` tokens.
    """

    def __init__(self, seq_id: int, request: EngineRequest, config: EngineConfig) -> None:
        remote = request.remote
        self.id = seq_id
        self.request = request
        #: Order among sequences: those with lower ``priority`` first, then older ones.
        self.key = (request.priority, seq_id)
        self.state = State.WAITING
        if remote is not None:
            self.state = State.AWAITING_HANDOFF if remote.remote_engine_id == config.engine_id else State.CONNECTING
        self.tokens = [*request.prompt_token_ids, *request.output_token_ids]
        if remote is not None and remote.first_token >= 0:
            self.tokens.append(remote.first_token)
        #: Number of tokens that the request came with; the first token sampled here comes after them.
        self.num_given = len(self.tokens)
        #: The number of tokens with which the sequence ends, bounded by ``max_tokens``, the model and the cache. A
        #: hand-off ends after its one token anyway.
        asked_for = config.max_total_tokens if request.hand_off else self.num_prompt + request.max_tokens
        self.max_num_tokens = min(asked_for, config.max_total_tokens)
        self.blocks: list[int] = []
        self.num_computed = 0
        #: Number of steps under way that have a row of it. Two only while it decodes: each of them adds one token.
        self.num_under_way = 0
        #: Number of leading blocks whose hash the pool knows.
        self.num_registered = 0
        #: Number of prompt tokens found in the prefix cache at the first admission; -1 before.
        self.num_cached = -1
        #: Number of leading prompt tokens whose logprobs have been reported, or are not wanted. Nothing predicts the
        #: first one.
        self.num_scored = self.num_prompt if request.sampling.num_prompt_logprobs is None else 1
        self.on_rank = False
        self.read_id = -1
        #: Whether it is CLOSING because its read was given up or its output cannot go on; its caller got an error.
        self.is_given_up = False
        #: Whether it is CLOSING, and its read has not ended after ``read_timeout_s`` and may never end.
        self.is_overdue = False
        self._block_size = config.block_size
        self._block_hashes: list[bytes] = []

    def __repr__(self) -> str:
        return (
            f"<Sequence {self.id} {self.state} prompt={self.num_prompt} outputs={self.num_outputs}"
            f" computed={self.num_computed} blocks={len(self.blocks)}>"
        )

    @property
    def remote(self) -> KVTransferParams:
        """Where its blocks are: of a sequence that reads them, or takes them over."""
        assert self.request.remote is not None
        return self.request.remote

    @property
    def num_prompt(self) -> int:
        return len(self.request.prompt_token_ids)

    @property
    def num_outputs(self) -> int:
        """The number of output tokens so far, including those sampled on other workers."""
        return len(self.tokens) - len(self.request.prompt_token_ids)

    @property
    def num_prefilled(self) -> int:
        """The number of tokens in P's blocks at a hand-off: the prompt, and the outputs that the request came with."""
        return len(self.request.prompt_token_ids) + len(self.request.output_token_ids)

    @property
    def num_blocks_needed(self) -> int:
        return -(-len(self.tokens) // self._block_size)

    @property
    def needs_block(self) -> bool:
        """Whether the next token to decode, after the steps under way, begins a block that the sequence lacks."""
        return len(self.tokens) + self.num_under_way > len(self.blocks) * self._block_size

    @property
    def is_decoding(self) -> bool:
        """Whether a step computes one token of it and samples the next; as true after the steps under way."""
        return len(self.tokens) - self.num_computed == 1

    @property
    def ends_under_way(self) -> bool:
        """Whether it is sure to end with a step under way, by a length or as a hand-off."""
        if not self.num_under_way:
            return False
        return self.request.hand_off or len(self.tokens) + self.num_under_way >= self.max_num_tokens

    @property
    def samples(self) -> bool:
        """Whether a token is sampled once all tokens are computed; otherwise the sequence ends then."""
        return len(self.tokens) < self.max_num_tokens

    @property
    def num_matchable(self) -> int:
        """The number of leading blocks that may come from the prefix cache.

        The block of the last token is excluded: that token must be computed for its logits, and computing it writes
        into its block, which must not be a shared one. So are the blocks of tokens whose logits are the next tokens'
        logprobs, unless these were reported before a preemption.
        """
        if not self.is_scored:
            return (self.num_scored - 1) // self._block_size
        return (len(self.tokens) - 1) // self._block_size

    @property
    def is_scored(self) -> bool:
        """Whether no logprobs of its prompt are left to report."""
        return self.num_scored >= self.num_prompt

    def scored_by(self, start: int, end: int) -> range:
        """The tokens of the prompt that are scored when the tokens ``start`` to ``end`` are computed: each is scored by
        the logits of the one before it.
        """
        return range(max(start + 1, self.num_scored), min(end + 1, self.num_prompt))

    def block_hashes(self, num_blocks: int) -> list[bytes]:
        """Hashes of the first ``num_blocks`` blocks, all of which must be full. Each is computed once."""
        size, known = self._block_size, self._block_hashes
        if len(known) < num_blocks:
            parent = known[-1] if known else first_parent(self.request.cache_salt, self.request.adapter)
            known += hash_blocks(parent, self.tokens[len(known) * size : num_blocks * size], size)
        return known[:num_blocks]

    def advance(self, event: Event) -> None:
        """Change ``state`` as the table says. Raises IllegalTransitionError, and then changes nothing."""
        self.state = next_state(self.state, event)
