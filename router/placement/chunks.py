"""A prompt as a sequence of hashes, each over the prompt up to the end of a chunk: equal hashes mean equal prefixes.

All prompts have their chunks in the same places. A chunk is ``CHUNK_BYTES`` long, or ``1 / PARTS`` of what is before it
if that is more: a match is then found to within that part of itself, and the number of chunks grows as the logarithm of
the prompt's length.
"""

from __future__ import annotations

import functools
import secrets
from bisect import bisect_right
from itertools import pairwise
from typing import Final

from xxhash import xxh3_64_intdigest

#: About 128 tokens of text, eight blocks of 16: smaller chunks cost more time than the extra matches save.
CHUNK_BYTES: Final = 512
PARTS: Final = 16
#: Text after this many bytes is ignored.
MAX_BYTES: Final = 256 * 1024


def _ends() -> tuple[int, ...]:
    ends, end = [], 0
    while (end := end + max(CHUNK_BYTES, end // PARTS // CHUNK_BYTES * CHUNK_BYTES)) <= MAX_BYTES:
        ends.append(end)
    return tuple(ends)


#: Bytes of the first so many chunks of any prompt that has so many.
NUM_BYTES: Final = (0, *_ends())
_PARTS: Final = tuple(slice(*ends) for ends in pairwise(NUM_BYTES))
#: Size of each chunk, bytes; a prompt has at most as many chunks as this has numbers.
SIZES: Final = tuple(end - start for start, end in pairwise(NUM_BYTES))
_SECRET: Final = secrets.randbits(64)


def num_chunks_in(num_bytes: int) -> int:
    """The number of chunks that a prompt of ``num_bytes`` fills."""
    return bisect_right(NUM_BYTES, num_bytes) - 1


@functools.lru_cache(maxsize=64)
def _seed_of(model: str) -> int:
    return xxh3_64_intdigest(model.encode(), _SECRET)


def chunk_hashes(text: bytes, model: str) -> tuple[int, ...]:
    """One hash for each chunk that the text fills. Valid only inside this process.

    XXH3, which is about ten times as fast as Python's own hash of bytes. It begins with a secret of the process, so
    that it is hard to make prompts that collide; a collision would lead to a worse choice, never to a wrong answer.
    """
    hashes = []
    above = _seed_of(model)
    view = memoryview(text)
    for part in _PARTS[: num_chunks_in(len(text))]:
        above = xxh3_64_intdigest(view[part], above)
        hashes.append(above)
    return tuple(hashes)
