"""A prompt as a sequence of hashes, each over the prompt up to the end of a chunk: equal hashes mean equal prefixes."""

from __future__ import annotations

#: About 128 tokens of text, eight blocks of 16: smaller chunks cost more time than the extra matches save.
CHUNK_BYTES = 512
#: Most chunks of one prompt: text after its first 256 KiB is ignored.
MAX_CHUNKS = 512


def chunk_hashes(text: bytes, model: str) -> tuple[int, ...]:
    """One hash for each full chunk of the text, at most ``MAX_CHUNKS``. Valid only inside this process.

    Python's own hash of bytes is keyed with a secret of the process, so clients cannot make prompts that collide; it is
    also the fastest hash available. A collision would lead to a worse choice, never to a wrong answer.
    """
    hashes = []
    above = hash(model)
    for start in range(0, min(len(text) // CHUNK_BYTES, MAX_CHUNKS) * CHUNK_BYTES, CHUNK_BYTES):
        above = hash((above, text[start : start + CHUNK_BYTES]))
        hashes.append(above)
    return tuple(hashes)
