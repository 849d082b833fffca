"""What a worker announces in the registry several times a second: its record, which never changes, and its load.

JSON. Routers and workers of neighbouring versions read each other: unknown fields are skipped, and a field that is
added has a default. What is beyond the bounds of a field is no announcement: other programs write to Redis too, and the
values are parts of Redis keys, labels of metrics, and numbers to compute with.

History
-------
1: first version. Added since: ``WorkerRecord.tp``, ``weights_fingerprint``, ``root``, ``created``,
   ``adapters``, ``version``, ``sampling_defaults`` and ``name``; what ``WorkerLoad`` says of remote engines
   (``peer...``). A router that does not know ``adapters`` sends the worker requests for its model only.
2: where there is an internal token, an announcement is numbered, and signed with a key made of the token
   (``core/registry/signature.py``). Readers of version 1 skip both; a router of version 2 with a token accepts only
   what is signed. Going from 1 to 2, workers are replaced first, then routers.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec

from baton_serve.core.protocol.id_syntax import Count, KeyId, Name, Text

#: Most adapters of one worker: it takes no more, and routers accept no more of an announcement.
MAX_ADAPTERS = 128
#: Remote engines for which a worker reports an error; usually there are a few.
_MAX_PEER_ERRORS = 64


class Role(StrEnum):
    """What a worker is for."""

    PREFILL = "prefill"
    DECODE = "decode"
    BOTH = "both"


class AdapterRecord(msgspec.Struct, kw_only=True, frozen=True):
    """A LoRA adapter that a worker serves under a name of its own, beside its model."""

    name: Text
    #: The folder that it was loaded from.
    root: str
    #: Equal on two workers with equal ``weights_fingerprint`` if they compute the same with their adapters.
    fingerprint: Text


class WorkerRecord(msgspec.Struct, kw_only=True, frozen=True):
    """A worker's record. ``worker_id`` and ``engine_id`` are new at every start of the process."""

    worker_id: str
    engine_id: KeyId
    role: Role
    model: Text
    #: Base URL of the port that serves ``/v1``, without a trailing slash.
    url: str
    #: Base URL of the internal port (handshake, abort, drain).
    internal_url: str
    compatibility_hash: Text
    max_model_len: Count
    block_size: Count
    num_blocks: Count
    #: Most sequences that the worker runs at once; others wait inside the worker.
    max_num_seqs: Count
    #: Ranks of the engine.
    tp: Count = 1
    #: Engines with the same fingerprint sample the same tokens, whatever the layout of their blocks. Empty: unknown.
    weights_fingerprint: Text = ""
    #: What the model was loaded from: a folder or a hub id. Empty: unknown.
    root: str = ""
    #: When the model was loaded, Unix seconds, for people; 0: unknown.
    created: Count = 0
    adapters: Annotated[tuple[AdapterRecord, ...], msgspec.Meta(max_length=MAX_ADAPTERS)] = ()
    #: Baton's version; empty: unknown.
    version: str = ""
    #: What is sampled with where a request says nothing, by the names of its parameters: the model's own values.
    sampling_defaults: dict[str, int | float] = {}
    #: The name that ``baton up`` gave it, which commands take in place of its id; empty: none.
    name: Name = ""


class WorkerLoad(msgspec.Struct, kw_only=True, frozen=True):
    """The load of a worker now; ``GET /load`` answers the same."""

    running: Count = 0
    waiting: Count = 0
    reading: Count = 0
    free_blocks: Count = 0
    cached_blocks: Count = 0
    pinned_blocks: Count = 0
    leased_blocks: Count = 0
    leases: Count = 0
    draining: bool = False
    #: Remote engines by state of the handshake. Engines that were lost since, or do not answer reads, count as failed.
    peers_connecting: Count = 0
    peers_connected: Count = 0
    peers_failed: Count = 0
    #: For the few engines that failed last, by engine id: one short line for people, which begins with a reason.
    peer_errors: Annotated[dict[Text, Text], msgspec.Meta(max_length=_MAX_PEER_ERRORS)] = {}


class WorkerStatus(msgspec.Struct, kw_only=True, frozen=True):
    """One registry entry."""

    record: WorkerRecord
    load: WorkerLoad
