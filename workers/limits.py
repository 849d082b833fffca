"""Upper bounds of what a hand-off or a handshake contains. ``server/answers/transfer_params.py`` applies them."""

from __future__ import annotations

from dataclasses import replace

from baton_serve.core.protocol.openai.json_body import BodyLimits

#: Ranks of one engine, however its model is split. A reader fetches a handshake from each rank.
MAX_RANKS = 64
#: Blocks of one rank, and pieces of remote memory that one rank reads from one engine. NIXL makes a descriptor of 24
#: bytes for each of them, even if the peer only claims to have it. A cache of 80 GB has about 100,000 blocks.
MAX_BLOCKS = MAX_PIECES = 2**24
#: Characters of a NIXL agent's name, which in Baton is an engine id and a rank.
MAX_AGENT_NAME_CHARS = 256
#: Bytes of NIXL's own metadata of one rank: usually about 1 KB, and more with each network device.
MAX_AGENT_METADATA_BYTES = 2**17
#: Bytes that a router adds to a client's body: per token its id and, at most once per token, the number of a block; and
#: once per body ids, addresses, and the logprobs of the first token.
HAND_OFF_TOKEN_BYTES, HAND_OFF_BYTES = 24, 2**16
#: What a router adds to a client's body, counted in JSON values per token, and in objects, arrays and keys per body.
HAND_OFF_TOKEN_VALUES, HAND_OFF_NODES = 2, 2**12


def with_hand_off(max_body_bytes: int, max_model_len: int) -> int:
    """Bytes of the largest body that a worker accepts: the largest body of a client, and the largest hand-off."""
    return max_body_bytes + HAND_OFF_BYTES + HAND_OFF_TOKEN_BYTES * max_model_len


def limits_with_hand_off(limits: BodyLimits, max_model_len: int) -> BodyLimits:
    """``limits`` of a client's body, increased by the largest hand-off."""
    max_values = limits.max_values + HAND_OFF_NODES + HAND_OFF_TOKEN_VALUES * max_model_len
    return replace(limits, max_values=max_values, more_nodes=limits.more_nodes + HAND_OFF_NODES)
