"""A prompt as a row of hashes, each of everything up to the end of its chunk: equal hashes are equal beginnings."""

from __future__ import annotations

#: About 128 tokens of text, eight blocks of 16: finer would cost more time than the blocks it finds are worth.
CHUNK_BYTES = 512
#: Chunks of one prompt: what comes after its first 256 KiB is not looked at.
MAX_CHUNKS = 512


def chunk_hashes(text: bytes, model: str) -> tuple[int, ...]:
    """One hash for each full chunk of the text, at most ``MAX_CHUNKS``. They mean nothing outside this process.

    Python's own hash of bytes is keyed with a secret of the process, so clients cannot make prompts that collide, and
    it is the fastest there is here. A collision would cost a worse choice, never a wrong answer.
    """
    hashes = []
    above = hash(model)
    for start in range(0, min(len(text) // CHUNK_BYTES, MAX_CHUNKS) * CHUNK_BYTES, CHUNK_BYTES):
        above = hash((above, text[start : start + CHUNK_BYTES]))
        hashes.append(above)
    return tuple(hashes)
