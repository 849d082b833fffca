"""A prompt as a sequence of hashes, each over the prompt up to the end of a chunk: equal hashes mean equal prefixes.

All prompts have their chunks in the same places. A chunk is ``CHUNK_BYTES`` long, or ``1 / PARTS`` of what is before it
if that is more: a match is then found to within that part of itself, and the number of chunks grows as the logarithm of
the prompt's length.
"""

from __future__ import annotations

#: About 128 tokens of text, eight blocks of 16: smaller chunks cost more time than the extra matches save.
CHUNK_BYTES = 512
PARTS = 16
#: Text after this many bytes is ignored.
MAX_BYTES = 256 * 1024


def _ends() -> tuple[int, ...]:
    ends, end = [], 0
    while (end := end + max(CHUNK_BYTES, end // PARTS // CHUNK_BYTES * CHUNK_BYTES)) <= MAX_BYTES:
        ends.append(end)
    return tuple(ends)


_ENDS = _ends()
#: Size of each chunk, bytes; a prompt has at most as many chunks as this has numbers.
SIZES = tuple(end - start for start, end in zip((0, *_ENDS), _ENDS, strict=False))


def num_bytes_in(num_chunks: int) -> int:
    """Bytes of the first ``num_chunks`` chunks of any prompt that has so many."""
    return _ENDS[num_chunks - 1] if num_chunks else 0


def chunk_hashes(text: bytes, model: str) -> tuple[int, ...]:
    """One hash for each chunk that the text fills. Valid only inside this process.

    Python's own hash of bytes is keyed with a secret of the process, so clients cannot make prompts that collide; it is
    also the fastest hash available. A collision would lead to a worse choice, never to a wrong answer.
    """
    hashes = []
    above, start = hash(model), 0
    for end in _ENDS:
        if end > len(text):
            break
        above = hash((above, text[start:end]))
        hashes.append(above)
        start = end
    return tuple(hashes)
