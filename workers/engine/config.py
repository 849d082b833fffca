"""What an engine is built with."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Sizes of one engine; the first four come from the ranks' ``RankReady``.

    ``num_blocks``: blocks in the cache (the minimum over all ranks). ``block_size``: tokens per block.
    ``max_model_len``: tokens of prompt and output together. ``vocab_size``: all token ids are below this number.
    ``max_num_seqs``: slots for sequences that run or read at once. At most ``max_waiting`` further sequences wait.
    Reads that were cancelled or given up and have not ended take no slot.
    ``max_num_batched_tokens``: most tokens computed per step. Decode rows come first, and prefill chunks get the rest,
    so this bounds how long a prefill may delay running streams. Never below ``max_num_seqs``.
    ``prefix_cache``: reuse blocks by content. ``read_timeout_s``: seconds after which a read of P's blocks is given up:
    its request fails at once, its blocks stay out of use until the read has ended.
    ``step_timeout_s``: seconds after which ranks that have not answered a step count as hung, and the engine as dead.
    ``steps_ahead``: send a step that decodes on shortly before the one under way ends.
    ``engine_id``: this engine's id, to recognize hand-offs whose P is this engine; empty if there can be none.
    """

    num_blocks: int
    block_size: int
    max_model_len: int
    vocab_size: int
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    max_waiting: int = 1024
    prefix_cache: bool = True
    read_timeout_s: float = 15.0
    step_timeout_s: float = 120.0
    steps_ahead: bool = True
    engine_id: str = ""

    @property
    def max_total_tokens(self) -> int:
        """Most tokens of one sequence, prompt and output together: the minimum of model length and whole cache."""
        return min(self.max_model_len, self.num_blocks * self.block_size)

    @property
    def num_spare_blocks(self) -> int:
        """Blocks (1%) left free on admission while sequences run, so that their next tokens do not preempt at once."""
        return self.num_blocks // 100
