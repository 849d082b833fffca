"""With which models single blocks of a hand-off can be told apart, and with which P gives up blocks on the way."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from vllm.v1.kv_cache_interface import FullAttentionSpec, MambaSpec, MLAAttentionSpec, UniformTypeKVCacheSpecs

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheSpec


class BlockLayout(NamedTuple):
    """What one engine can do with single blocks."""

    #: P tells which allocation took each block last.
    counts_allocations: bool
    #: D can keep the first blocks of a hand-off and compute the others.
    keeps_parts: bool
    #: Some layers look back through a window, and vLLM gives up the blocks before it while a prompt is computed.
    gives_up_blocks: bool

    @classmethod
    def of(cls, vllm_config: VllmConfig, kv_cache_config: KVCacheConfig) -> BlockLayout:
        """A block is told by its number, which several groups of layers give to different blocks. A layer that looks
        back through a window lacks the blocks before the first one that would be computed.

        vLLM's second model runner fills new blocks with zeros before a connector hears of them.
        """
        specs = [group.kv_cache_spec for group in kv_cache_config.kv_cache_groups]
        is_plain = (
            len(specs) == 1
            and type(specs[0]) in (FullAttentionSpec, MLAAttentionSpec)
            and specs[0].sliding_window is None
            and specs[0].attention_chunk_size is None
        )
        is_producer = vllm_config.kv_transfer_config.is_kv_producer
        counts_allocations = is_plain and is_producer and not vllm_config.use_v2_model_runner
        return cls(counts_allocations, is_plain, not all(map(_keeps_all, specs)))


def _keeps_all(spec: KVCacheSpec) -> bool:
    """Whether a group's layers need all tokens, or keep a state of them, for which vLLM has rules of its own."""
    if isinstance(spec, UniformTypeKVCacheSpecs):
        return all(map(_keeps_all, spec.kv_cache_specs.values()))
    return isinstance(spec, FullAttentionSpec | MambaSpec)
