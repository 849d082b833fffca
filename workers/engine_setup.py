"""From settings to a rank's start parameters and an engine's sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workers.engine.config import EngineConfig
from workers.rank.spec import RankSpec
from workers.transfer.options import TransferOptions

if TYPE_CHECKING:
    from protocol.steps import RankReady
    from workers.settings import WorkerSettings


def rank_spec(settings: WorkerSettings, engine_id: str) -> RankSpec:
    """What the rank process is started with."""
    return RankSpec(
        model=settings.model,
        revision=settings.revision,
        engine_id=engine_id,
        device=settings.device,
        dtype=settings.dtype,
        block_size=settings.block_size,
        num_blocks=settings.num_blocks,
        kv_cache_bytes=settings.kv_cache_bytes,
        gpu_memory_fraction=settings.gpu_memory_fraction,
        max_model_len=settings.max_model_len,
        num_threads=settings.torch_threads,
        transfer_options=TransferOptions(unsafe_disable_fence=settings.unsafe_disable_fence),
        internal_host=settings.bound_internal_host,
    )


def engine_config(settings: WorkerSettings, ready: RankReady) -> EngineConfig:
    """The engine's sizes, from the rank's and the settings."""
    return EngineConfig(
        num_blocks=ready.num_blocks,
        block_size=settings.block_size,
        max_model_len=ready.max_model_len,
        vocab_size=ready.vocab_size,
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        max_waiting=settings.max_waiting,
        engine_id=ready.metadata.engine_id,
    )
