"""Versions change before their blocks do: D would else accept what was overwritten while it read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from baton_serve.core.protocol.steps import NewSequence, Row, SamplingParams, Step
from baton_serve.workers.rank.adapters.adapter_set import AdapterSet
from baton_serve.workers.rank.cache.kv_cache import CacheShape, KVCache
from baton_serve.workers.rank.grammar.library import GrammarLibrary
from baton_serve.workers.rank.runner import Runner
from baton_serve.workers.transfer.versions import VersionTable

SHAPE = CacheShape(num_kv_heads=1, num_layers=1, block_size=4, head_dim=2, dtype=torch.float32)
BLOCK, VERSION = 1, 2**63 + 7


class LookedAt(KVCache):
    """A cache, and the version that the block had whenever something could be written."""

    def __init__(self, versions: VersionTable) -> None:
        super().__init__(SHAPE, 2, torch.device("cpu"))
        self.versions = versions
        self.found: list[int] = []

    def look(self) -> None:
        self.found.append(int(self.versions.array[BLOCK]))

    def clear(self, block_ids: list[int]) -> None:
        self.look()
        super().clear(block_ids)


class Writer:
    """Where a model would write."""

    vocab_size, max_model_len = 8, 8
    adapters = AdapterSet()

    def attention(self, cache: LookedAt, batch: object) -> Callable[[], None]:
        return cache.look

    def logits(self, attend: Callable[[], None], ids: object, positions: object, wanted: Sequence[int]) -> torch.Tensor:
        attend()
        return torch.zeros(len(wanted), self.vocab_size)


def test_a_step_stores_versions_before_it_writes() -> None:
    versions = VersionTable(2)
    cache = LookedAt(versions)
    writer: Any = Writer()
    new = NewSequence(1, [1, 2], [], SamplingParams(temperature=0.0), [])
    runner = Runner(writer, cache, versions, GrammarLibrary(print, writer.vocab_size))
    runner.execute(Step(1, [(BLOCK, VERSION)], [], [new], [Row(1, 0, 2, [BLOCK], True)]))
    assert cache.found == [VERSION, VERSION]
