"""The adapters that a rank has loaded."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from baton_serve.workers.rank.adapters.low_rank import Factors, LowRank, Selection, attach


class AdapterSet:
    """Adapters by fingerprint, each with a number. Equal adapters under several names are one."""

    def __init__(self) -> None:
        #: Fingerprints by the names under which adapters are served.
        self.names: dict[str, str] = {}
        self.numbers: dict[str, int] = {}
        self.selection = Selection()
        #: What they add to layers, by the layers' names in the model.
        self.parts: dict[str, LowRank] = {}

    def __len__(self) -> int:
        return len(self.numbers)

    def add(self, name: str, fingerprint: str, factors: Mapping[str, Factors]) -> int:
        """Add an adapter; returns its number. ``factors``: by the names of the layers that it changes."""
        self.names[name] = fingerprint
        number = self.numbers.setdefault(fingerprint, len(self.numbers))
        for layer, ours in factors.items():
            self.parts.setdefault(layer, LowRank(self.selection, {})).factors[number] = ours
        return number

    def attach(self, model: torch.nn.Module) -> None:
        """Have the layers of a model add their parts. Call it once, when all adapters are there."""
        for layer, part in self.parts.items():
            attach(model.get_submodule(layer), part)

    def unused(self, number: int) -> list[str]:
        """The layers that the adapter changes, and where it has never added anything."""
        return [layer for layer, part in self.parts.items() if number in part.factors and number not in part.used]
