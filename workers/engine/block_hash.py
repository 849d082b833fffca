"""Names for the content of a block: equal exactly when the block's tokens and all tokens before it are equal."""

from __future__ import annotations

from array import array
from hashlib import blake2b
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Parent of a sequence's first block.
ROOT = b""
#: 128 bits: no two contents of one engine's life collide, not even on purpose.
_DIGEST_BYTES = 16


def content_hash(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """The name of a full block with these tokens, after the block named ``parent`` (16 bytes)."""
    digest = blake2b(parent, digest_size=_DIGEST_BYTES)
    digest.update(array("q", token_ids).tobytes())
    return digest.digest()
