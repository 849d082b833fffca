"""Makes the start parameters of the ranks from settings, and the engine's configuration from the ranks' answers."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from typing import Literal

from msgspec.structs import replace

from baton_serve.core.protocol.steps import RankReady
from baton_serve.core.protocol.worker import Role
from baton_serve.workers.engine.config import EngineConfig
from baton_serve.workers.rank_protocol.spec import MAX_DEFAULT_THREADS, RankSpec, TransferOptions
from baton_serve.workers.settings import WorkerSettings


def rank_spec(settings: WorkerSettings, engine_id: str) -> RankSpec:
    """The start parameters of rank 0; those of the other ranks differ only in ``rank``."""
    return RankSpec(
        model=settings.model,
        revision=settings.revision,
        adapters=settings.adapters,
        engine_id=engine_id,
        num_ranks=settings.tp,
        device=settings.device,
        dtype=settings.dtype,
        attention=settings.attention,
        decode_graphs=_decode_graphs(settings),
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        block_size=settings.block_size,
        num_blocks=settings.num_blocks,
        kv_cache_bytes=settings.kv_cache_bytes,
        gpu_memory_fraction=settings.gpu_memory_fraction,
        max_model_len=settings.max_model_len,
        num_threads=threads_per_rank(settings, os.environ, len(os.sched_getaffinity(0))),
        transfer_options=TransferOptions(unsafe_disable_fence=settings.unsafe_disable_fence),
        internal_host=settings.bound_internal_host,
    )


def _decode_graphs(settings: WorkerSettings) -> Literal["auto", "on", "off"]:
    """A prefill worker samples one token of each request, from a prefill step."""
    is_idle = settings.role is Role.PREFILL and settings.decode_graphs == "auto"
    return "off" if is_idle else settings.decode_graphs


def threads_per_rank(settings: WorkerSettings, environ: Mapping[str, str], num_cpus: int) -> int | None:
    """The number of threads that each rank uses; None if the rank decides.

    A single rank uses its own default. Several ranks would each use every core, so the cores are divided between them.
    ``OMP_NUM_THREADS`` already is a number per process.
    """
    if settings.torch_threads is not None:
        return max(1, settings.torch_threads // settings.tp)
    if settings.tp == 1 or "OMP_NUM_THREADS" in environ:
        return None
    return max(1, min(MAX_DEFAULT_THREADS, num_cpus // settings.tp))


def with_text_fingerprint(
    ready: RankReady, text_fingerprint: str, sampling_defaults: Mapping[str, float] | None = None
) -> RankReady:
    """``ready`` with a weights fingerprint that covers the tokenizer and the defaults of sampling too.

    The blocks do not depend on these, but the answer does: a worker with another tokenizer would decode a hand-off's
    tokens to other text, and encode the prompt of a migrated request to other tokens; one with other defaults would
    sample the rest of an answer in another way than its beginning.
    """
    parts = [ready.compatibility.weights_fingerprint, text_fingerprint]
    if sampling_defaults:  # without any it is the fingerprint of versions that did not know them
        parts.append(json.dumps(sampling_defaults, sort_keys=True))
    model = hashlib.sha256(" ".join(parts).encode()).hexdigest()[:32]
    return replace(ready, compatibility=replace(ready.compatibility, weights_fingerprint=model))


def engine_config(settings: WorkerSettings, ready: RankReady) -> EngineConfig:
    """The engine's configuration, from the settings and the answer of rank 0 (all ranks agree on these values)."""
    return EngineConfig(
        num_blocks=ready.num_blocks,
        block_size=settings.block_size,
        max_model_len=ready.max_model_len,
        vocab_size=ready.vocab_size,
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        max_waiting=settings.max_waiting,
        read_timeout_s=settings.read_timeout_s,
        step_timeout_s=settings.step_timeout_s,
        engine_id=ready.metadata.engine_id,
    )
