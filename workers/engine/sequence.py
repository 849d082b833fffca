"""One sequence: its tokens, its blocks, how far it is computed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workers.engine.block_hash import ROOT, content_hash
from workers.engine.sequence_state import Event, State, next_state

if TYPE_CHECKING:
    from workers.engine.api import EngineRequest


class Sequence:
    """Made from a request that was found valid. Only ``advance`` changes ``state``.

    ``tokens`` are prompt and outputs; the keys and values of the first ``num_computed`` of them are in ``blocks``.
    """

    __slots__ = (
        "_block_size",
        "_contents",
        "blocks",
        "id",
        "is_given_up",
        "is_overdue",
        "key",
        "max_num_tokens",
        "num_cached",
        "num_computed",
        "num_given",
        "num_named",
        "on_rank",
        "read_id",
        "request",
        "state",
        "tokens",
    )

    def __init__(
        self, seq_id: int, request: EngineRequest, block_size: int, max_total_tokens: int, own_engine_id: str = ""
    ) -> None:
        remote = request.remote
        self.id = seq_id
        self.request = request
        #: Order among sequences: lower ``priority`` first, then older.
        self.key = (request.priority, seq_id)
        self.state = State.WAITING
        if remote is not None:
            self.state = State.PARKED if remote.remote_engine_id == own_engine_id else State.CONNECTING
        self.tokens = [*request.prompt_token_ids, *request.output_token_ids]
        if remote is not None and remote.first_token >= 0:
            self.tokens.append(remote.first_token)
        #: Tokens that the caller knew before the first of ours.
        self.num_given = len(self.tokens)
        #: With so many tokens it is full: what was asked for, the model or the cache bounds it. The one token of a
        #: hand-off ends it anyway.
        asked_for = max_total_tokens if request.hand_off else self.num_prompt + request.max_tokens
        self.max_num_tokens = min(asked_for, max_total_tokens)
        self.blocks: list[int] = []
        self.num_computed = 0
        #: Leading blocks whose content the pool has been told.
        self.num_named = 0
        #: Prompt tokens found in the prefix cache when it was first admitted; -1 before.
        self.num_cached = -1
        self.on_rank = False
        self.read_id = -1
        #: Its read was given up, and its caller told so; it closes.
        self.is_given_up = False
        #: It closes, and its read has not ended after ``read_timeout_s``: nobody knows when, or whether, it will.
        self.is_overdue = False
        self._block_size = block_size
        self._contents: list[bytes] = []

    def __repr__(self) -> str:
        return (
            f"<Sequence {self.id} {self.state} prompt={self.num_prompt} outputs={self.num_outputs}"
            f" computed={self.num_computed} blocks={len(self.blocks)}>"
        )

    @property
    def num_prompt(self) -> int:
        """Tokens of the prompt."""
        return len(self.request.prompt_token_ids)

    @property
    def num_outputs(self) -> int:
        """Tokens sampled so far, those from elsewhere included."""
        return len(self.tokens) - len(self.request.prompt_token_ids)

    @property
    def num_prefilled(self) -> int:
        """Tokens that a P has in its blocks when it hands over: the prompt and the outputs that it was given."""
        return len(self.request.prompt_token_ids) + len(self.request.output_token_ids)

    @property
    def num_blocks_needed(self) -> int:
        """Blocks that hold all tokens it has."""
        return -(-len(self.tokens) // self._block_size)

    @property
    def num_matchable(self) -> int:
        """Leading blocks that may come from the prefix cache.

        Never the block of the last token: computing that gives the logits, and would write a block others share.
        """
        return (len(self.tokens) - 1) // self._block_size

    def contents(self, num_blocks: int) -> list[bytes]:
        """Content names of the first ``num_blocks`` blocks, all of them full. Computed once."""
        size = self._block_size
        for index in range(len(self._contents), num_blocks):
            parent = self._contents[-1] if self._contents else ROOT
            self._contents.append(content_hash(parent, self.tokens[index * size : (index + 1) * size]))
        return self._contents[:num_blocks]

    def advance(self, event: Event) -> None:
        """Follow the table. Raises IllegalTransitionError and changes nothing."""
        self.state = next_state(self.state, event)
