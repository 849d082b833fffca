"""Which hand-offs D can use: P has kept all that D will look at. Pure, and knows nothing of vLLM.

vLLM has a block of its own, the null block, in place of each block that a layer with a window does not need any more.
P strikes those before the window out of what it hands over, and D reads from no hand-off that has one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import dropwhile
from typing import Any

import msgspec

from baton_serve.core.protocol.handoff import NULL_BLOCK, names_null_block


class _HandOff(msgspec.Struct):
    """What is looked at of ``kv_transfer_params``, which a client may have written."""

    remote_num_tokens: int
    remote_block_ids: list[list[int]]
    pp_size: int = 1


def without_null(block_ids: Sequence[int]) -> list[int]:
    """The blocks from the first one on that holds something."""
    return list(dropwhile(lambda block_id: block_id == NULL_BLOCK, block_ids))


def why_unusable(params: Mapping[str, Any], num_tokens: int) -> str:
    """Why D computes a prompt of which it would read ``num_tokens`` tokens, for people; empty: it can read them."""
    try:
        told = msgspec.convert(params, _HandOff)
    except msgspec.ValidationError:
        return "its parameters are not those of a hand-off"
    if told.pp_size != 1:
        return f"it was prefilled in {told.pp_size} pipeline stages, of which this connector can read one only"
    if told.remote_num_tokens != num_tokens:
        return f"{told.remote_num_tokens} tokens of it were prefilled, and {num_tokens} would be read"
    if names_null_block(told.remote_block_ids):
        return "one of its blocks has been given up already"
    return ""
