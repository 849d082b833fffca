"""D uses what P has kept for it, and computes any other prompt."""

from __future__ import annotations

from typing import Any

import pytest

from baton_serve.core.protocol.handoff import NULL_BLOCK
from baton_serve.workers.vllm.usable import why_unusable, without_null

GOOD: dict[str, Any] = {
    "do_remote_prefill": True,
    "remote_engine_id": "e",
    "remote_block_ids": [[3, 4, 5], [7, 8]],
    "remote_num_tokens": 95,
    "pp_size": 1,
}


def test_what_p_has_kept_is_read() -> None:
    assert why_unusable(GOOD, 95) == ""
    assert why_unusable({**GOOD, "remote_block_ids": []}, 95) == ""


@pytest.mark.parametrize("num_tokens", [94, 96])
def test_p_and_d_mean_the_same_tokens(num_tokens: int) -> None:
    assert "95 tokens" in why_unusable(GOOD, num_tokens)


@pytest.mark.parametrize("blocks", [[[3, 4, 5], [NULL_BLOCK, 8]], [[3, NULL_BLOCK, 5]]])
def test_the_null_block_is_never_data(blocks: list[list[int]]) -> None:
    assert "given up" in why_unusable({**GOOD, "remote_block_ids": blocks}, 95)


def test_pipeline_stages_are_refused_by_name() -> None:
    assert "2 pipeline stages" in why_unusable({**GOOD, "pp_size": 2}, 95)


@pytest.mark.parametrize(
    "params",
    [
        {"do_remote_prefill": True},
        {**GOOD, "remote_block_ids": None},
        {**GOOD, "remote_block_ids": "0"},
        {**GOOD, "remote_block_ids": [3, 4]},
        {**GOOD, "remote_num_tokens": None},
        {**GOOD, "pp_size": "1"},
    ],
)
def test_what_a_client_made_up_is_not_read(params: dict[str, Any]) -> None:
    assert why_unusable(params, 95) == "its parameters are not those of a hand-off"


def test_only_blocks_before_the_window_are_struck_out() -> None:
    """A null block between others is not P's to strike out: all before it would move by one."""
    assert without_null([NULL_BLOCK, NULL_BLOCK, 5, 6]) == [5, 6]
    assert without_null([5, NULL_BLOCK, 6]) == [5, NULL_BLOCK, 6]
    assert without_null([]) == []
