"""What is in the tensors that graphs read."""

from __future__ import annotations

import pytest
import torch

from baton_serve.workers.rank.cache.batch import Batch, BatchRow
from baton_serve.workers.rank.cache.kv_cache import CacheShape, KVCache
from baton_serve.workers.rank.graphs.decode_inputs import DecodeInputs

SHAPE = CacheShape(num_kv_heads=2, num_layers=3, block_size=4, head_dim=8, dtype=torch.float32)
ROWS = [BatchRow(5, 1, [7, 3]), BatchRow(0, 1, [1]), BatchRow(11, 1, [4, 6, 2])]
SPARE = 9


@pytest.fixture
def cache() -> KVCache:
    return KVCache(SHAPE, SPARE, torch.device("cpu"), with_spare=True)


@pytest.fixture
def inputs(cache: KVCache) -> DecodeInputs:
    return DecodeInputs(cache, max_rows=8, max_model_len=30)


def test_a_step_has_what_a_batch_has(inputs: DecodeInputs, cache: KVCache) -> None:
    inputs.fill(ROWS, [21, 22, 23], 3)
    step, batch = inputs.step(3), Batch(ROWS, SHAPE, cache.device)
    assert batch.order == [0, 1, 2]
    assert step.token_ids.tolist() == [21, 22, 23]
    assert step.positions.tolist() == batch.positions.tolist()
    assert step.slots.tolist() == batch.slots[:3].tolist()
    assert step.paged.ends.tolist() == [6, 1, 12]
    for row, table in zip(ROWS, step.paged.tables.tolist(), strict=True):
        assert table[: len(row.block_ids)] == row.block_ids


def test_what_fills_up_a_step_is_in_the_spare_block(inputs: DecodeInputs, cache: KVCache) -> None:
    inputs.fill(ROWS, [21, 22, 23], 3)
    inputs.fill(ROWS[:1], [31], 4)
    step = inputs.step(4)
    assert step.token_ids.tolist() == [31, 0, 0, 0]
    assert step.positions.tolist() == [5, 0, 0, 0]
    assert step.paged.ends.tolist() == [6, 1, 1, 1]
    assert step.paged.tables[1:, 0].tolist() == [SPARE] * 3
    key, value = torch.ones(2, 1, 4, 8)
    cache.write(0, step.slots, key, value)
    assert not cache.tensor[[block for block in range(SPARE) if block != 3]].any()
    assert cache.all_blocks[SPARE].any()


def test_tensors_never_move(inputs: DecodeInputs) -> None:
    before = inputs.step(8)
    inputs.fill(ROWS, [21, 22, 23], 8)
    after = inputs.step(8)
    for name in ("token_ids", "positions", "slots"):
        assert getattr(before, name).data_ptr() == getattr(after, name).data_ptr()
    assert before.paged.tables.data_ptr() == after.paged.tables.data_ptr()
    assert before.token_ids.tolist() == [21, 22, 23, 0, 0, 0, 0, 0]
    assert after.paged.max_end == 30
