"""A short name for a model's weights: equal on two engines exactly when their KV caches mean the same."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

import torch

from workers.rank.distributed import whole

if TYPE_CHECKING:
    from transformers import PreTrainedModel

#: Config fields that say where a checkpoint comes from or how it is run, not what it computes.
_IRRELEVANT = {
    "_name_or_path",
    "_attn_implementation",
    "_commit_hash",
    "architectures",
    "distributed_config",
    "dtype",
    "torch_dtype",
    "transformers_version",
    "use_cache",
}
#: Numbers taken from each tensor, evenly spread. Training changes nearly all numbers of nearly all tensors, so a few
#: of each tell two checkpoints apart without reading gigabytes.
SAMPLES_PER_TENSOR = 64


def fingerprint(model: PreTrainedModel) -> str:
    """32 hex digits over the config and over name, shape, dtype and ``SAMPLES_PER_TENSOR`` numbers of each tensor.

    It tells apart what is different by accident (another fine-tune, another revision, another dtype); somebody who
    changes single numbers on purpose can get past it. However many ranks the model is split over, the outcome is the
    same; they all have to call this at the same time.
    """
    digest = hashlib.blake2b(digest_size=16)
    config = {name: value for name, value in model.config.to_dict().items() if name not in _IRRELEVANT}
    digest.update(json.dumps(config, sort_keys=True, default=str).encode())
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {list(tensor.shape)} {tensor.dtype}".encode())
        digest.update(_sample(tensor))
    return digest.hexdigest()


def _sample(tensor: torch.Tensor) -> bytes:
    flat = whole(tensor.detach()).reshape(-1)
    stride = max(1, flat.numel() // SAMPLES_PER_TENSOR)
    return flat[::stride][:SAMPLES_PER_TENSOR].contiguous().view(torch.uint8).cpu().numpy().tobytes()
