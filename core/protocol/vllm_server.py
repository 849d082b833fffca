"""What a vLLM server with Baton's connector announces in the registry: its record, and the load of its engine.

JSON, of a kind of its own (``core/registry/announcement.py``), and not a worker's record with more fields: a router
that does not know the kind never reads it, while it would skip unknown fields of a worker's record, and take the server
for a worker of Baton's.

Unknown fields are skipped, and a field that is added has a default.

History
-------
1: first version.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from baton_serve.core.protocol.id_syntax import Count, Text
from baton_serve.core.protocol.worker import Role, WorkerLoad


class VllmRecord(msgspec.Struct, kw_only=True, frozen=True):
    """The record of one server. ``server_id`` is new at every start."""

    server_id: str
    role: Role
    #: The first of its served names, for people: routers ask the server for all of them, and for its adapters.
    model: Text
    #: Base URL of its API that routers reach, without a trailing slash.
    url: str
    #: Version of vLLM.
    version: Annotated[str, msgspec.Meta(pattern=r"\A[ -~]{0,512}\Z")]
    #: Where its NIXL side channel listens.
    side_channel_host: str
    side_channel_port: Annotated[int, msgspec.Meta(ge=1, le=65535)]
    #: The port on the same host where it answers handshakes over HTTP; 0: its side channel is open.
    handshake_port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 0
    #: Most sequences that one engine of the server runs at once; others wait inside vLLM.
    max_num_seqs: Count
    max_model_len: Count
    block_size: Count
    num_blocks: Count
    #: Tensor-parallel ranks of one engine.
    tp: Count = 1
    #: When it was started, Unix seconds: of two servers that announce one URL, the younger one is there.
    started_s: Annotated[float, msgspec.Meta(ge=0, le=2**40)] = 0.0


class VllmStatus(msgspec.Struct, kw_only=True, frozen=True):
    """One registry entry. A server knows ``running``, ``free_blocks``, ``pinned_blocks`` and ``leases``."""

    record: VllmRecord
    load: WorkerLoad
