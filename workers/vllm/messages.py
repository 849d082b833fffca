"""What the halves of the connector tell each other, inside vLLM's own messages."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vllm.distributed.kv_transfer.kv_connector.v1.nixl.metadata import NixlHandshakePayload

if TYPE_CHECKING:
    from workers.vllm.fence.promises import Promise, Told
    from workers.vllm.fence.tables import Table


@dataclass
class FenceStep:
    """What the workers are told of the fence in one step: the attribute ``fence`` of vLLM's metadata."""

    told: Told
    #: The promises of the hand-offs whose blocks are read from this step on; None: the hand-off came without.
    promises: dict[str, Promise | None] = field(default_factory=dict)


@dataclass
class FencedPayload(NixlHandshakePayload):
    """vLLM's answer to a handshake, and where a rank's words are. Peers without a fence skip the field."""

    fence: Table
