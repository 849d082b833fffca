"""Loads the adapters of a rank, and proves that they are computed as peft computes them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from transformers import PreTrainedModel

from baton_serve.workers.rank.adapters.adapter_set import AdapterSet
from baton_serve.workers.rank.cache.batch import NO_ADAPTER
from baton_serve.workers.rank.cache.kv_cache import CacheShape
from baton_serve.workers.rank.in_place.rows import Kernel
from baton_serve.workers.rank.loading.probe import compare, own_logits, paged_logits
from baton_serve.workers.rank_protocol.errors import UnsupportedModelError


@dataclass(frozen=True)
class LoadedAdapters:
    """``own``: by the number of an adapter, the logits of the prompts of ``probe`` as peft computes them."""

    adapters: AdapterSet = field(default_factory=AdapterSet)
    own: dict[int, list[torch.Tensor]] = field(default_factory=dict)


def load_adapters(
    model: PreTrainedModel, folders: Mapping[str, str], base: str, progress: Callable[[str], None]
) -> LoadedAdapters:
    """Load adapters by their names, and attach them to the model. ``base``: its fingerprint.

    All ranks call this at the same time, before layers are replaced. Raises ModelLoadError; UnsupportedModelError,
    which names the reasons.
    """
    loaded = LoadedAdapters()
    if not folders:
        return loaded
    # Peft is not needed where there are no adapters.
    from baton_serve.workers.rank.adapters.peft_files import read_adapter

    for name, folder in folders.items():
        began_s = time.monotonic()
        read = read_adapter(model, name, Path(folder), base, lambda: own_logits(model))
        loaded.own[loaded.adapters.add(name, read.fingerprint, read.factors)] = read.own
        progress(f"loaded adapter {name}: {len(read.factors)} layers in {time.monotonic() - began_s:.2f} s")
    loaded.adapters.attach(model)
    return loaded


def prove_adapters(
    model: PreTrainedModel,
    shape: CacheShape,
    loaded: LoadedAdapters,
    base: list[torch.Tensor],
    kernel: Kernel | None = None,
) -> None:
    """Compare the logits of two prompts with ``own``: both with the adapter, and the second one without it.

    ``base``: the ``own_logits`` of the model without adapters. Raises UnsupportedModelError if they differ, or if a
    layer is computed without the adapter: what an adapter adds there may be too little to show in the logits.
    """
    adapters = loaded.adapters
    for name, fingerprint in adapters.names.items():
        number = adapters.numbers[fingerprint]
        first, second = loaded.own[number]
        for whose, own in (((number, number), [first, second]), ((number, NO_ADAPTER), [first, base[1]])):
            error = compare(paged_logits(model, shape, kernel, adapters.selection, whose), own, shape.dtype)
            if error is not None:
                raise UnsupportedModelError(
                    f"adapter '{name}' is not supported: as served it gives other logits than peft does "
                    f"(relative error {error:.2g})"
                )
        unused = adapters.unused(number)
        if unused:
            raise UnsupportedModelError(f"adapter '{name}' is not supported: {unused[0]} is computed without it")
