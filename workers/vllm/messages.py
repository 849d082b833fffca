"""What the halves of the connector tell each other, inside vLLM's own messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vllm.distributed.kv_transfer.kv_connector.v1.nixl.metadata import NixlHandshakePayload

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from baton_serve.core.leases.store import LeaseState
    from baton_serve.workers.vllm.fence.promises import Promise, Told
    from baton_serve.workers.vllm.fence.tables import Table


@dataclass
class BatonStep:
    """What the workers are told in one step beside what vLLM tells them: the attribute ``baton`` of its metadata."""

    words: Told
    #: The promises of the hand-offs whose blocks are read from this step on; None: the hand-off came without.
    promises: Mapping[str, Promise | None]
    #: The blocks that were taken since the last step, and by which allocation.
    taken: Mapping[int, int]
    #: Requests that have a lease in the store from this step on.
    leased: Sequence[str]
    #: Requests whose lease in the store has ended, RELEASED or EXPIRED.
    ended: Mapping[str, LeaseState]
    #: By engine: where it answers handshakes over HTTP. Only of engines that requests have named since the last step.
    handshake_ports: Mapping[str, int]


@dataclass
class FencedPayload(NixlHandshakePayload):
    """vLLM's answer to a handshake, and where a rank's words are. Peers without a fence skip the field."""

    fence: Table
