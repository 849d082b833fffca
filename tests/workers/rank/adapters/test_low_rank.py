"""What adapters add to a layer, and to several layers that are computed as one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
import torch

from baton_serve.workers.rank.adapters.low_rank import Factors, LowRank, Selection, attach, joined, part_of
from baton_serve.workers.rank.cache.batch import NO_ADAPTER, AdapterRun, Batch, BatchRow
from baton_serve.workers.rank.cache.kv_cache import CacheShape
from baton_serve.workers.rank.layers.linear import is_available
from baton_serve.workers.rank.layers.linear import joined as packed

SHAPE = CacheShape(num_kv_heads=1, num_layers=1, block_size=4, head_dim=8, dtype=torch.float32)
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


def batch_of(*rows: tuple[int, int]) -> Batch:
    """Rows of so many tokens, each with the number of its adapter."""
    return Batch(
        [BatchRow(0, tokens, [2 * i, 2 * i + 1], adapter) for i, (tokens, adapter) in enumerate(rows)], SHAPE, CPU
    )


def factors(inputs: int, outputs: int, rank: int = 2) -> Factors:
    return Factors(torch.randn(inputs, rank), torch.randn(rank, outputs))


def layers_with(selection: Selection, adapters: Sequence[Sequence[int]]) -> list[torch.nn.Linear]:
    """Layers with 16 inputs, each with the adapters that are listed for it."""
    layers = [torch.nn.Linear(16, size, bias=False) for size in (8, 4, 6)]
    for layer, numbers in zip(layers, adapters, strict=True):
        if numbers:
            attach(layer, LowRank(selection, {number: factors(16, layer.out_features) for number in numbers}))
    return layers


def expected(layer: torch.nn.Linear, inputs: torch.Tensor, adapter: int) -> torch.Tensor:
    part = part_of(layer)
    found = None if part is None else part.factors.get(adapter)
    product = inputs @ layer.weight.T
    return product if found is None else product + inputs @ found.down @ found.up


def test_each_adapter_adds_to_its_own_rows_only() -> None:
    selection = Selection()
    (layer, _, _) = layers_with(selection, [[0, 1], [], []])
    batch = batch_of((1, 1), (1, NO_ADAPTER), (3, 0), (2, NO_ADAPTER))
    inputs = torch.randn(1, batch.num_tokens, 16)
    with selection.running(batch):
        got = layer(inputs)[0]
    for i, adapter in enumerate((1, NO_ADAPTER, 0, NO_ADAPTER)):
        last = batch.last_tokens[i]
        assert torch.allclose(got[last], expected(layer, inputs[0, last], adapter), atol=1e-5)
    assert torch.equal(layer(inputs)[0], inputs[0] @ layer.weight.T), "nothing is selected any more"


def test_rows_of_one_adapter_are_side_by_side() -> None:
    batch = batch_of((1, 1), (1, NO_ADAPTER), (1, 0), (1, 1), (2, 1), (3, NO_ADAPTER), (2, 1))
    assert batch.order == [1, 2, 0, 3, 5, 4, 6]
    assert batch.adapter_runs == (AdapterRun(0, slice(1, 2)), AdapterRun(1, slice(2, 4)), AdapterRun(1, slice(7, 11)))


@pytest.mark.skipif(not is_available(torch.float32), reason="torch without oneDNN")
@pytest.mark.parametrize("adapters", [[[0], [0], [0]], [[], [0], []], [[1], [0, 1], [0]]])
def test_layers_that_are_one_product_keep_all_parts(adapters: list[list[int]]) -> None:
    selection = Selection()
    layers = layers_with(selection, adapters)
    together = packed(layers)
    batch = batch_of((1, 0), (4, 1), (2, NO_ADAPTER))
    inputs = torch.randn(1, batch.num_tokens, 16)
    with selection.running(batch):
        parts = together(inputs)[0].split([8, 4, 6], dim=-1)
    for layer, part in zip(layers, parts, strict=True):
        for i, adapter in enumerate((0, 1, NO_ADAPTER)):
            last = batch.last_tokens[i]
            assert torch.allclose(part[last], expected(layer, inputs[0, last], adapter), atol=1e-5)


def test_layers_without_adapters_stay_without() -> None:
    layers = layers_with(Selection(), [[], [], []])
    assert joined(layers) is None
    assert not any(layer._forward_hooks for layer in layers)


def test_what_was_added_shows_in_the_layers_that_are_one() -> None:
    selection = Selection()
    layers = layers_with(selection, [[0], [0, 1], []])
    part = joined(layers)
    assert part is not None
    with selection.running(batch_of((2, 1))):
        part.add(torch.randn(2, 16), torch.zeros(2, 18))
    first, second = (part_of(layer) for layer in layers[:2])
    assert first is not None and second is not None
    assert first.used == second.used == {1}


def test_a_layer_that_is_given_other_tokens_says_so() -> None:
    selection = Selection()
    (layer, _, _) = layers_with(selection, [[0], [], []])
    with selection.running(batch_of((5, 0))), pytest.raises(ValueError, match="given 3 of 5 tokens"):
        layer(torch.randn(1, 3, 16))
