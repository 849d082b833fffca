"""The hash of a block: equal exactly when the block's tokens, all tokens before it, the request's salt and the adapter
that computed them are equal.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b

#: Parent hash of a sequence's first block, without a salt and without an adapter.
NO_PARENT = b""
#: 128 bits of a cryptographic hash, so that blocks do not collide during the life of an engine, not even on purpose.
_DIGEST_BYTES = 16


def first_parent(salt: str, adapter: str = "") -> bytes:
    """The parent of a sequence's first block. With different salts or adapters no two blocks have the same hash.

    ``adapter``: its fingerprint, so that equal adapters share blocks. The hash of a salt or an adapter is no hash of
    tokens, whatever the salt is.
    """
    if adapter:
        # A fingerprint has no spaces, so no other pair gives the same bytes.
        return blake2b(f"{adapter} {salt}".encode(), digest_size=_DIGEST_BYTES, person=b"adapter").digest()
    if not salt:
        return NO_PARENT
    return blake2b(salt.encode(), digest_size=_DIGEST_BYTES, person=b"cache salt").digest()


def hash_blocks(parent: bytes, token_ids: Sequence[int], block_size: int) -> list[bytes]:
    """The hashes of full blocks with these tokens, after the block whose hash is ``parent`` (16 bytes)."""
    tokens = array("q", token_ids)
    data, num_bytes = tokens.tobytes(), tokens.itemsize * block_size
    hashes: list[bytes] = []
    for start in range(0, len(data), num_bytes):
        parent = blake2b(parent + data[start : start + num_bytes], digest_size=_DIGEST_BYTES).digest()
        hashes.append(parent)
    return hashes
