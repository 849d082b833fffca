"""The facts about a worker that its answers contain."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from baton_serve.core.protocol.worker import AdapterRecord
from baton_serve.workers.text.sampling_defaults import SamplingDefaults


@dataclass(frozen=True, kw_only=True)
class Identity:
    """The facts about a worker that do not change once its engine runs.

    ``internal_host`` and ``internal_port`` are where other engines ask for the handshake. ``weights`` is the
    fingerprint of weights and tokenizer.
    """

    engine_id: str
    model: str
    #: The folder or hub id of the model, and when it was loaded, in Unix seconds.
    root: str
    created: int
    weights: str
    vocab_size: int
    max_model_len: int
    internal_host: str
    internal_port: int
    num_ranks: int = 1
    #: What is sampled with where a request says nothing.
    defaults: SamplingDefaults = field(default_factory=SamplingDefaults)
    #: Adapters by the names under which they are served, beside ``model``.
    adapters: Mapping[str, AdapterRecord] = field(default_factory=dict)

    def serves(self, model: str) -> bool:
        return model == self.model or model in self.adapters

    def adapter_of(self, model: str) -> str:
        """Fingerprint of the adapter with this name; empty for the model itself."""
        adapter = self.adapters.get(model)
        return "" if adapter is None else adapter.fingerprint

    def system_fingerprint(self, model: str) -> str:
        """OpenAI's, equal on workers that may continue each other's answers."""
        adapter = self.adapter_of(model)
        weights = hashlib.sha256(f"{self.weights} {adapter}".encode()).hexdigest() if adapter else self.weights
        return f"fp_{weights[:12]}"
