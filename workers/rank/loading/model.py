"""Loads a model of transformers from a local folder or hub id, with Baton's attention, and runs it."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.distributed.configuration_utils import DistributedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from baton_serve.workers.rank import distributed
from baton_serve.workers.rank.adapters.adapter_set import AdapterSet
from baton_serve.workers.rank.cache.attention import NAME, Attend, attending, register
from baton_serve.workers.rank.cache.batch import Batch
from baton_serve.workers.rank.cache.kv_cache import CacheShape, KVCache
from baton_serve.workers.rank.device import assign_device
from baton_serve.workers.rank.in_place.choice import attention_of, choose_kernel, kernel_of_cpu
from baton_serve.workers.rank.in_place.rows import Kernel
from baton_serve.workers.rank.layers.packing import pack
from baton_serve.workers.rank.layers.positions import max_positions
from baton_serve.workers.rank.layers.row_programs import programs_for
from baton_serve.workers.rank.loading.adapters import load_adapters, prove_adapters
from baton_serve.workers.rank.loading.config_checks import check_config, check_split
from baton_serve.workers.rank.loading.fingerprint import fingerprint
from baton_serve.workers.rank.loading.layers_once import layers_once
from baton_serve.workers.rank.loading.probe import HALF_TYPES, own_logits, probe_layers, prove_equal, prove_in_float32
from baton_serve.workers.rank_protocol.errors import ModelLoadError, one_line
from baton_serve.workers.rank_protocol.spec import RankSpec

T = TypeVar("T")


@dataclass(frozen=True)
class ModelShard:
    """A loaded model, or this rank's shard of it, with its sizes and fingerprint."""

    module: PreTrainedModel
    device: torch.device
    cache_shape: CacheShape
    max_model_len: int
    vocab_size: int
    weights_fingerprint: str
    adapters: AdapterSet
    selects_logits: bool
    #: Computes the attention in place; None: keys and values are gathered.
    kernel: Kernel | None
    #: Seconds for reading the weights, and for hashing them afterwards.
    load_s: float
    fingerprint_s: float

    def attention(self, cache: KVCache, batch: Batch) -> Attend:
        """The attention of a forward pass, which writes K and V into the cache."""
        return attention_of(self.kernel, cache, batch)

    def layers_once(self) -> AbstractContextManager[None]:
        """Within, only the first forward pass computes the layers: see ``layers_once``. All passes have its tokens."""
        return layers_once(self.module, selects_logits=self.selects_logits)

    def logits(
        self, attend: Attend, token_ids: torch.Tensor, positions: torch.Tensor, wanted: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Run a forward pass with an attention; returns logits ``[token, vocabulary]``.

        ``wanted`` has indices on the token axis; None: all. All ranks compute the same batch and get the same logits.
        Adapters compute their rows of the batch that is selected, see ``Selection``, and none otherwise.
        """
        select = {"logits_to_keep": wanted} if self.selects_logits and wanted is not None else {}
        with attending(attend), torch.inference_mode():
            output = self.module(input_ids=token_ids[None], position_ids=positions[None], use_cache=False, **select)
        logits: torch.Tensor = output.logits[0]
        return logits if select or wanted is None else logits[wanted]


def load_model(spec: RankSpec, progress: Callable[[str], None]) -> ModelShard:
    """Load the model of ``spec``. If there are several ranks, join the others first.

    Raises ModelLoadError; UnsupportedModelError, which names the reasons; and torch's errors if another rank is lost.
    """
    config = _load_config(spec)
    check_config(config, _model_class(config))
    if spec.num_ranks > 1:
        check_split(config, spec.num_ranks)
    max_model_len = _max_model_len(spec, config)
    device = assign_device(spec)
    if spec.decode_graphs == "on" and device.type == "cpu":  # said before minutes of loading
        raise ModelLoadError("decode graphs are wanted, but they need a GPU")
    if spec.num_ranks > 1:
        distributed.join(spec, device)
    if device.type == "cuda":
        # Triton starts programs on the current device, whichever one their tensors are on.
        torch.cuda.set_device(device)
    kernel = choose_kernel(spec.attention, device, progress)
    register()
    progress(f"loading {spec.model}")
    module, load_s = _timed(lambda: _load_weights(spec, device).eval())
    shape = probe_layers(module, spec.block_size, spec.num_ranks)
    kernel = kernel or kernel_of_cpu(spec.attention, device, shape.dtype)
    num_bytes = sum(distributed.local_part(tensor).nbytes for tensor in module.state_dict().values())
    dtype = str(module.dtype).removeprefix("torch.")
    weights_fingerprint, fingerprint_s = _timed(lambda: fingerprint(module))
    own = own_logits(module)
    if spec.num_ranks == 1 and shape.dtype in HALF_TYPES:
        progress("comparing its attention with the model's own in float32")
        prove_in_float32(module, shape, kernel)
    loaded = load_adapters(module, spec.adapters, weights_fingerprint, progress)
    if spec.num_ranks == 1:
        progress("laying out weights")
        pack(module, programs_for(device))
    prove_equal(module, shape, own, kernel)
    prove_adapters(module, shape, loaded, own, kernel)
    progress(
        f"loaded {num_bytes / 1e6:.0f} MB of weights on {device} as {dtype} in {load_s:.2f} s, "
        f"fingerprint of every byte in {fingerprint_s:.2f} s"
    )
    return ModelShard(
        module=module,
        device=device,
        cache_shape=shape,
        max_model_len=max_model_len,
        vocab_size=config.vocab_size,
        weights_fingerprint=weights_fingerprint,
        adapters=loaded.adapters,
        selects_logits="logits_to_keep" in inspect.signature(module.forward).parameters,
        kernel=kernel,
        load_s=load_s,
        fingerprint_s=fingerprint_s,
    )


def _timed(work: Callable[[], T]) -> tuple[T, float]:
    """The result of ``work``, and the seconds that it took."""
    began_s = time.monotonic()
    return work(), time.monotonic() - began_s


def _load_config(spec: RankSpec) -> PretrainedConfig:
    folder = Path(spec.model).expanduser()
    looks_local = folder.exists() or spec.model.startswith(("/", "./", "../", "~"))
    if looks_local and not (folder / "config.json").is_file():
        raise ModelLoadError(f"no model in {spec.model}: {'no config.json' if folder.is_dir() else 'no such folder'}")
    source = str(folder) if looks_local else spec.model
    try:
        return AutoConfig.from_pretrained(source, revision=spec.revision, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        # The message's sentences after the first one are advice for Python programmers.
        reason = one_line(error).partition(". ")[0]
        raise ModelLoadError(f"cannot load the config of {spec.model}: {reason}") from error


def _model_class(config: PretrainedConfig) -> type[PreTrainedModel] | None:
    found: type[PreTrainedModel] | None = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    return found


def _max_model_len(spec: RankSpec, config: PretrainedConfig) -> int:
    most = max_positions(config)
    if most is None and spec.max_model_len is None:
        raise ModelLoadError(f"the config of {spec.model} has no maximum length; set max_model_len")
    if most is None or spec.max_model_len is None:
        return int(most or spec.max_model_len or 0)
    if spec.max_model_len > most:
        raise ModelLoadError(f"max_model_len {spec.max_model_len} is more than the model's {most} positions")
    return spec.max_model_len


def _load_weights(spec: RankSpec, device: torch.device) -> PreTrainedModel:
    """Load the model to the device; if there are several ranks, each loads only its shard."""
    split = {"distributed_config": DistributedConfig(tp_size=spec.num_ranks)} if spec.num_ranks > 1 else {}
    try:
        module, info = AutoModelForCausalLM.from_pretrained(
            str(Path(spec.model).expanduser()) if Path(spec.model).expanduser().is_dir() else spec.model,
            revision=spec.revision,
            dtype="float32" if spec.dtype == "auto" and device.type == "cpu" else spec.dtype,
            attn_implementation=NAME,
            trust_remote_code=False,
            output_loading_info=True,
            **split,
        )
    except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
        raise ModelLoadError(f"cannot load the weights of {spec.model}: {one_line(error)}") from error
    # Transformers fills missing and mismatched tensors with random numbers and only warns.
    bad = sorted(str(key) for kind in ("missing_keys", "mismatched_keys") for key in info[kind])
    if bad:
        raise ModelLoadError(f"the weights of {spec.model} lack {len(bad)} tensors, first {bad[0]}")
    result: PreTrainedModel = module if split else module.to(device)
    return result
