"""The blocks that a vLLM server hands over. Pure."""

from __future__ import annotations

import msgspec

from baton_serve.core.protocol.handoff import names_null_block


class _HandOff(msgspec.Struct):
    """One list for each group of layers that are cached alike."""

    remote_block_ids: list[list[int]] = []


_decoder = msgspec.json.Decoder(_HandOff)


def lacks_block(params: bytes) -> bool:
    """Whether P has given up a block that a D may need for the last token of the prompt. Raises ValueError.

    vLLM gives up what the *next* token does not need, but D computes the last one of the prompt again. Where the two
    windows begin in different blocks, D needs one block more than P kept, and then the null block is in its place. It
    may also be there where D needs nothing of it, which cannot be told: vLLM says nowhere how long its windows are.
    """
    return names_null_block(_decoder.decode(params).remote_block_ids)
