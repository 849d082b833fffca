"""The hash of a block: equal exactly when the block's tokens and all tokens before it are equal."""

from __future__ import annotations

from array import array
from hashlib import blake2b
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Parent hash of a sequence's first block.
NO_PARENT = b""
#: 128 bits of a cryptographic hash, so that blocks do not collide during the life of an engine, not even on purpose.
_DIGEST_BYTES = 16


def hash_block(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """The hash of a full block with these tokens, after the block whose hash is ``parent`` (16 bytes)."""
    digest = blake2b(parent, digest_size=_DIGEST_BYTES)
    digest.update(array("q", token_ids).tobytes())
    return digest.digest()
