"""Checks at load time that the paged attention computes what the model needs.

A config can be incomplete, and new architectures have new fields, but the arguments that a model passes to the
attention function are certain. So one small forward pass records the shapes and all arguments of each layer, and a
second check compares the logits of the model as it is served, with paged attention and any layers that Baton replaces,
with those of the model's own attention and layers.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import PreTrainedModel

from baton_serve.workers.rank.adapters.low_rank import Selection
from baton_serve.workers.rank.cache.attention import NAME, AttentionCall, attending
from baton_serve.workers.rank.cache.batch import NO_ADAPTER, Batch, BatchRow
from baton_serve.workers.rank.cache.kv_cache import CacheShape, KVCache
from baton_serve.workers.rank.in_place.choice import attention_of
from baton_serve.workers.rank.in_place.rows import Kernel
from baton_serve.workers.rank.loading.config_checks import refuse
from baton_serve.workers.rank_protocol.errors import UnsupportedModelError, one_line

logger = logging.getLogger(__name__)

HALF_TYPES = (torch.bfloat16, torch.float16)
#: Arguments without effect here: dropout is off in evaluation, positions are applied to the queries already, and the
#: others control what transformers itself caches or returns.
_HARMLESS = {"dropout", "position_ids", "cache_position", "use_cache", "output_attentions", "output_hidden_states"}
_NAMES = {
    "softcap": "soft-capped attention scores",
    "s_aux": "attention sinks",
    "position_bias": "position biases",
    "attention_mask": "a mask of its own",
    "cu_seq_lens_q": "packed inputs",
    "indices": "sparse attention",
    "block_indices": "sparse attention",
}
#: Allowed relative error of the logits. In half precision the two attentions round differently, so that a small
#: difference shows in float32 only.
_TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-3}
_HALF_TOLERANCE = 0.2


class AttentionRecorder:
    """An ``Attend`` that records its arguments. Raises UnsupportedModelError for an unsupported feature."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._config = model.config
        self.layers: dict[int, AttentionCall] = {}

    def __call__(self, call: AttentionCall) -> torch.Tensor:
        module, query, key, value, scaling, *_ = call
        self._check_extras(call)
        if key.shape[-2] != query.shape[-2]:
            refuse(self._config, "cross attention or layers that share their KV cache")
        if not key.shape[-1] == value.shape[-1] == query.shape[-1]:
            refuse(self._config, "key and value heads of different sizes (multi-head latent attention)")
        if not query.dtype == key.dtype == value.dtype:
            refuse(self._config, "queries, keys and values of different dtypes")
        index = getattr(module, "layer_idx", None)
        if not isinstance(index, int) or index in self.layers:
            refuse(self._config, "attention layers that cannot be told apart")
        else:
            self.layers[index] = call
        shared = call.heads // call.kv_heads
        key, value = key.repeat_interleave(shared, 1), value.repeat_interleave(shared, 1)
        return scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling).transpose(1, 2)

    def _check_extras(self, call: AttentionCall) -> None:
        causal = call.extras.get("is_causal")
        if causal is False or (causal is None and getattr(call.module, "is_causal", True) is False):
            refuse(self._config, "bidirectional attention")
        for name, value in call.extras.items():
            if value is not None and value is not False and name not in _HARMLESS | {"is_causal"}:
                refuse(self._config, _NAMES.get(name, f"the attention argument '{name}'"))


def probe_layers(model: PreTrainedModel, block_size: int, num_ranks: int = 1) -> CacheShape:
    """Run two tokens through the model; returns the shape of this rank's cache. Raises UnsupportedModelError.

    The ranks of an engine call this, ``own_logits`` and ``prove_equal`` at the same time.
    """
    recorder = AttentionRecorder(model)
    device = model.device
    ids = torch.zeros(1, 2, dtype=torch.int64, device=device)
    positions = torch.arange(2, device=device)[None]
    try:
        with attending(recorder), torch.inference_mode():
            model(input_ids=ids, position_ids=positions, use_cache=False)
    except (TypeError, KeyError, AttributeError, RuntimeError) as error:
        raise UnsupportedModelError(f"model type '{model.config.model_type}' does not run: {error}") from error
    _check_layers(model, recorder.layers)
    first = recorder.layers[0]
    if num_ranks > 1:
        _check_split(model, first, num_ranks)
    return CacheShape(first.kv_heads, len(recorder.layers), block_size, first.head_dim, first.key.dtype)


def _check_layers(model: PreTrainedModel, layers: dict[int, AttentionCall]) -> None:
    config = model.config
    if sorted(layers) != list(range(config.num_hidden_layers)):
        refuse(config, f"{len(layers)} of its {config.num_hidden_layers} layers use replaceable attention")
    if len({(call.heads, call.kv_heads, call.head_dim, call.key.dtype) for call in layers.values()}) > 1:
        refuse(config, "layers with different attention heads")
    kinds = getattr(config, "layer_types", None) or ()
    # Some models apply the sliding window in the mask only, but the paged attention gets no mask.
    silent = [i for i, kind in enumerate(kinds) if kind == "sliding_attention" and layers[i].window is None]
    windowed = getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True)
    if silent or (not kinds and windowed and all(call.window is None for call in layers.values())):
        refuse(config, "a sliding window that does not reach the attention function")


def _check_split(model: PreTrainedModel, call: AttentionCall, num_ranks: int) -> None:
    """Refuse a model that was not split as its tensor-parallel plan says."""
    config = model.config
    total = (config.num_attention_heads, getattr(config, "num_key_value_heads", None) or config.num_attention_heads)
    mine = (call.heads, call.kv_heads)
    if (mine[0] * num_ranks, mine[1] * num_ranks) != total:
        refuse(config, f"one of {num_ranks} ranks has {mine[0]} of {total[0]} heads, {mine[1]} of {total[1]} KV heads")


def own_logits(model: PreTrainedModel) -> list[torch.Tensor]:
    """The last logits of two prompts with the model's own attention, for ``prove_equal``.

    Call it before layers are replaced, so that a wrong replacement shows.
    """
    model.set_attn_implementation("eager")
    try:
        with torch.inference_mode():
            return [model(input_ids=ids[None], use_cache=False).logits[0, -1].float() for ids in _prompts(model)]
    finally:
        model.set_attn_implementation(NAME)


def prove_equal(
    model: PreTrainedModel, shape: CacheShape, own: list[torch.Tensor], kernel: Kernel | None = None
) -> None:
    """Compare the logits of two prompts, computed in chunks and in one batch, with the model's ``own_logits``.

    Raises UnsupportedModelError if they differ.
    """
    _refuse_unless_equal(model, paged_logits(model, shape, kernel), own, shape.dtype)


def _refuse_unless_equal(
    model: PreTrainedModel, ours: list[torch.Tensor], own: list[torch.Tensor], dtype: torch.dtype
) -> None:
    error = compare(ours, own, dtype)
    if error is not None:
        refuse(model.config, f"as served it gives other logits than its own in {dtype} (relative error {error:.2g})")


def prove_in_float32(model: PreTrainedModel, shape: CacheShape, kernel: Kernel | None) -> None:
    """As ``prove_equal``, for a model in half precision with its numbers made float32: roundings hide nothing then.

    Call it before layers are replaced. A model that mixes types by itself does not run so, and neither does one that is
    split over ranks: these are compared in their own type alone. Raises UnsupportedModelError.
    """
    try:
        with _in_float32(model, shape.dtype):
            own = own_logits(model)
            ours = paged_logits(model, replace(shape, dtype=torch.float32), kernel)
    except RuntimeError as error:  # torch's word for tensors of two types, and for memory that is missing
        why = one_line(error)
        logger.warning("%s was compared with its own layers in half precision alone: %s", model.config.model_type, why)
        return
    _refuse_unless_equal(model, ours, own, torch.float32)


@contextmanager
def _in_float32(model: PreTrainedModel, dtype: torch.dtype) -> Iterator[None]:
    """Make the numbers of each module float32 for the time of its call: there is no memory for all of them at once."""

    kept: dict[torch.nn.Module, list[tuple[torch.Tensor, torch.Tensor]]] = {}

    def widen(module: torch.nn.Module, _: object) -> None:
        own = (*module.parameters(recurse=False), *module.buffers(recurse=False))
        kept[module] = [(tensor, tensor.data) for tensor in own if tensor.dtype == dtype]
        for tensor, _ in kept[module]:
            tensor.data = tensor.data.float()

    def narrow(module: torch.nn.Module, *_: object) -> None:
        for tensor, data in kept.pop(module):
            tensor.data = data

    hooks = [each.register_forward_pre_hook(widen) for each in model.modules()]
    hooks += [each.register_forward_hook(narrow) for each in model.modules()]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
        for module in list(kept):  # a call that failed
            narrow(module)


def compare(ours: list[torch.Tensor], own: list[torch.Tensor], dtype: torch.dtype) -> float | None:
    """The first relative error that is too large for a model of this type; None: there is none."""
    tolerance = _TOLERANCE.get(dtype, _HALF_TOLERANCE)
    errors = (float((mine - theirs).norm() / theirs.norm()) for mine, theirs in zip(ours, own, strict=True))
    return next((error for error in errors if not error <= tolerance), None)


def paged_logits(
    model: PreTrainedModel,
    shape: CacheShape,
    kernel: Kernel | None,
    selection: Selection | None = None,
    adapters: tuple[int, int] = (NO_ADAPTER, NO_ADAPTER),
) -> list[torch.Tensor]:
    """The last logits of both prompts, computed in two passes: 8 and 6 tokens, then the rest.

    ``adapters``: those of the two prompts; ``selection``: what lets layers know.
    """
    cache = KVCache(shape, 2 * -(-13 // shape.block_size), model.device)
    blocks = list(range(cache.num_blocks))
    prompts = list(zip(_prompts(model), (blocks[::2], blocks[1::2]), adapters, strict=True))
    logits = torch.empty(0)
    for cuts in ([(0, 8), (0, 6)], [(8, 13), (6, 7)]):
        parts = list(zip(cuts, prompts, strict=True))
        rows = [BatchRow(start, end - start, table, adapter) for (start, end), (_, table, adapter) in parts]
        batch = Batch(rows, cache.shape, cache.device)
        pieces = [ids[start:end] for (start, end), (ids, _, _) in parts]
        with nullcontext() if selection is None else selection.running(batch):
            logits = _run(model, cache, batch, pieces, kernel)
    return [logits[batch.last_tokens[i]].float() for i in range(len(prompts))]


def _run(
    model: PreTrainedModel, cache: KVCache, batch: Batch, pieces: list[torch.Tensor], kernel: Kernel | None
) -> torch.Tensor:
    ids = torch.cat([pieces[i] for i in batch.order])
    with attending(attention_of(kernel, cache, batch)), torch.inference_mode():
        output = model(input_ids=ids[None], position_ids=batch.positions[None], use_cache=False)
    logits: torch.Tensor = output.logits[0]
    return logits


def _prompts(model: PreTrainedModel) -> list[torch.Tensor]:
    """Two prompts of arbitrary tokens, always the same."""
    numbers = (torch.arange(length, device=model.device) * stride for length, stride in ((13, 5), (7, 11)))
    return [(each + 3) % model.config.vocab_size for each in numbers]
