"""How large what a hand-off names may be. ``server/transfer_params.py`` checks it for all that is behind it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from core.protocol.json_body import BodyLimits

#: Characters of an engine, request or lease id: ours have 32, ``core.leases.ids`` takes as many as this.
MAX_ID_CHARS = 128
#: A lease id. Narrower than other ids: a notification has to carry it between colons, and who reads blocks of a lease
#: that cannot be told of holds them up until its deadline.
LEASE_ID_PATTERN = rf"[0-9A-Za-z_-]{{1,{MAX_ID_CHARS}}}"
#: Ranks of one engine, in whatever directions its model is split. A reader asks every one for a handshake.
MAX_RANKS = 64
#: Blocks of one rank, and pieces of remote memory that one rank reads from one engine: NIXL makes a descriptor of 24
#: bytes for each, also for what a peer only claims to have. A cache of 80 GB has some 100,000 blocks.
MAX_BLOCKS = MAX_PIECES = 2**24
#: Characters of a NIXL agent's name: ours are an engine id and a rank.
MAX_AGENT_NAME_CHARS = 256
#: Bytes of NIXL's own metadata of one rank. Real ones have about 1 KB and grow by some for each network device.
MAX_AGENT_METADATA_BYTES = 2**17
#: What a router adds to a client's body, in bytes: for each token its id in digits and, if it has a block of its own,
#: that block's number and version; besides ids, addresses, and the logprobs of the first token.
HAND_OFF_TOKEN_BYTES, HAND_OFF_BYTES = 48, 2**16
#: The same in values, and, for all tokens together, in objects, arrays and keys.
HAND_OFF_TOKEN_VALUES, HAND_OFF_NODES = 4, 2**12


def with_hand_off(max_body_bytes: int, max_model_len: int) -> int:
    """The largest body of a worker: whatever a router takes of its client fits, with the hand-off that goes with it."""
    return max_body_bytes + HAND_OFF_BYTES + HAND_OFF_TOKEN_BYTES * max_model_len


def limits_with_hand_off(limits: BodyLimits, max_model_len: int) -> BodyLimits:
    """The same for what the body is made of."""
    max_values = limits.max_values + HAND_OFF_NODES + HAND_OFF_TOKEN_VALUES * max_model_len
    return replace(limits, max_values=max_values, more_nodes=limits.more_nodes + HAND_OFF_NODES)
