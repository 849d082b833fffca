"""The handshake: what D must know about a rank of P before it reads. msgpack, in two parts.

``GET /kv/handshake/{rank}`` answers one ``Handshake``. Its second part is decoded only if the first one matches, so
that two versions of Baton can always tell why they cannot be paired.

History
-------
1: first version.
2: the notification of a read names the reader and its rank; several ranks, whose shards divide the model. For a
   time there was also ``shared_memory``, which is skipped.
3: a hand-off has one promise, above which no version may be, in place of the version of each block.
"""

from __future__ import annotations

import hashlib

import msgspec

WIRE_VERSION = 3


class Compatibility(msgspec.Struct, kw_only=True, frozen=True):
    """What must be equal on both sides before D reads. ``hash`` covers all of it."""

    weights_fingerprint: str
    kv_dtype: str
    #: Axes of the cache, e.g. ``block,kv_head,layer,kv,slot,head_dim``.
    layout: str
    block_size: int
    num_layers: int
    num_kv_heads: int
    head_dim: int
    wire_version: int = WIRE_VERSION

    @property
    def hash(self) -> str:
        """32 hex digits; equal exactly when two engines may read each other's blocks."""
        return hashlib.blake2b(msgspec.msgpack.encode(self), digest_size=16).hexdigest()


class Shard(msgspec.Struct, kw_only=True, frozen=True):
    """The layers and heads of the model that a rank holds; ends are exclusive."""

    first_layer: int
    last_layer: int
    first_head: int
    last_head: int


class RankMetadata(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """How to read one rank's blocks."""

    engine_id: str
    rank: int
    num_ranks: int
    #: NIXL's opaque agent metadata.
    agent_metadata: bytes
    agent_name: str
    #: Address and device id of the cache tensor as registered with NIXL; block ``i`` starts at
    #: ``cache_address + i * block_bytes``.
    cache_address: int
    cache_memory_type: str
    cache_device_id: int
    num_blocks: int
    block_bytes: int
    #: Address of the version table: ``num_blocks`` little-endian unsigned 64-bit integers in host memory.
    version_address: int
    shard: Shard


class Handshake(msgspec.Struct, kw_only=True, frozen=True):
    """One answer of ``GET /kv/handshake/{rank}``."""

    wire_version: int
    engine_id: str
    compatibility_hash: str
    #: ``RankMetadata`` as msgpack; decode it only if the fields above agree.
    metadata: bytes
