"""What is in the tensors that graphs of steps with chunks of prompts read."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from baton_serve.workers.rank.cache.batch import Batch, BatchRow
from baton_serve.workers.rank.cache.kv_cache import CacheShape, KVCache
from baton_serve.workers.rank.graphs.prefill_inputs import PrefillInputs
from baton_serve.workers.rank.in_place.port import TOKENS_PER_TILE

SHAPE = CacheShape(num_kv_heads=2, num_layers=3, block_size=4, head_dim=8, dtype=torch.float32)
SPARE, MAX_MODEL_LEN, MAX_TOKENS, MAX_ROWS = 40, 100, 64, 6
#: Alone on the token axis, in the order of a batch: first what has one token.
ROWS = [BatchRow(11, 1, [4, 6, 2]), BatchRow(5, 20, [7, 3, 9, 12, 13, 14, 15]), BatchRow(0, 3, [1])]


def make_inputs(max_model_len: int = MAX_MODEL_LEN) -> tuple[PrefillInputs, KVCache]:
    cache = KVCache(SHAPE, SPARE, torch.device("cpu"), with_spare=True)
    return PrefillInputs(cache, MAX_TOKENS, MAX_ROWS, max_model_len), cache


def test_a_step_has_what_a_batch_has() -> None:
    inputs, cache = make_inputs()
    inputs.fill(ROWS, range(100, 124), 32)
    step, batch = inputs.step(32), Batch(ROWS, SHAPE, cache.device)
    assert batch.order == [0, 1, 2]
    assert step.token_ids.tolist() == [*range(100, 124), *[0] * 8]
    assert step.positions[:24].tolist() == batch.positions.tolist()
    assert step.slots[:24].tolist() == batch.slots[:24].tolist()
    assert step.last_tokens.tolist() == [0, 20, 23, 0, 0, 0]


def test_what_fills_up_a_step_is_in_the_spare_block() -> None:
    inputs, cache = make_inputs()
    inputs.fill(ROWS, range(24), 24)
    inputs.fill(ROWS[2:], range(3), 40)
    step = inputs.step(40)
    assert step.positions.tolist() == [0, 1, 2, *range(16), *range(16), *range(5)]
    key, value = torch.ones(2, 1, 40, 8)
    cache.write(0, step.slots[3:], key[:, 3:], value[:, 3:])
    assert not cache.tensor.any()
    assert cache.all_blocks[SPARE].any()


@pytest.mark.parametrize("max_model_len", [3, 7, 100])
@given(lengths=st.lists(st.integers(1, 40), max_size=MAX_ROWS), data=st.data())
def test_every_token_is_in_one_tile(max_model_len: int, lengths: list[int], data: st.DataObject) -> None:
    """Also of those that fill up, none of which reaches beyond the longest sequence of the model."""
    inputs, _ = make_inputs(max_model_len)
    rows: list[BatchRow] = []
    for length in lengths:
        num_tokens = min(length, max_model_len, MAX_TOKENS - sum(row.num_tokens for row in rows))
        if num_tokens:
            start = data.draw(st.integers(0, max_model_len - num_tokens))
            blocks = data.draw(st.permutations(range(SPARE)))[: -(-(start + num_tokens) // SHAPE.block_size)]
            rows.append(BatchRow(start, num_tokens, blocks))
    count = sum(row.num_tokens for row in rows)
    size = data.draw(st.integers(max(1, count), MAX_TOKENS))
    inputs.fill(rows, range(count), size)
    step = inputs.step(size)
    seen: dict[int, tuple[int, int]] = {}
    for line, first, num_tokens, start in step.rows.tiles.tolist():
        assert 0 <= num_tokens <= TOKENS_PER_TILE
        for number in range(num_tokens):
            assert first + number not in seen
            seen[first + number] = (line, start + number)
    assert sorted(seen) == list(range(size))
    token = 0
    for number, row in enumerate(rows):
        for position in range(row.start, row.end):
            assert seen[token] == (number + 1, position)
            token += 1
        assert step.rows.tables[number + 1, : len(row.block_ids)].tolist() == list(row.block_ids)
    assert [step.positions[at] for at in range(size)] == [position for _, (_, position) in sorted(seen.items())]
    assert all(line == 0 and position < max_model_len for line, position in list(seen.values())[token:])
    assert set(step.rows.tables[0].tolist()) == {SPARE}


def test_tensors_never_move() -> None:
    inputs, _ = make_inputs()
    before = inputs.step(64)
    inputs.fill(ROWS, range(24), 64)
    after = inputs.step(64)
    for name in ("token_ids", "positions", "slots", "last_tokens"):
        assert getattr(before, name).data_ptr() == getattr(after, name).data_ptr()
    assert before.rows.tables.data_ptr() == after.rows.tables.data_ptr()
    assert before.rows.tiles.data_ptr() == after.rows.tiles.data_ptr()
    assert before.token_ids[:24].tolist() == list(range(24))
