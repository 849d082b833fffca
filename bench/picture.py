"""PNG files small enough for a README: a picture in few colours, with a palette."""

from __future__ import annotations

import struct
import zlib

import numpy as np
import numpy.typing as npt

MAX_COLOURS = 256
#: Bits of each channel that rare colours keep when there are more colours than a palette has.
_COARSE_BITS = 5

Bytes = npt.NDArray[np.uint8]


def png_of(pixels: Bytes) -> bytes:
    """A PNG of ``pixels``, ``[row, column, 3]``. More than 256 colours become 256."""
    palette, indices = _reduce(pixels)
    height, width = indices.shape
    # Each row begins with filter 0: no other one makes a picture with a palette smaller.
    rows = np.concatenate([np.zeros((height, 1), np.uint8), indices], axis=1)
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        (
            _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)),
            _chunk(b"PLTE", palette.tobytes()),
            _chunk(b"IDAT", zlib.compress(rows.tobytes(), 9)),
            _chunk(b"IEND", b""),
        )
    )


def _reduce(pixels: Bytes) -> tuple[Bytes, Bytes]:
    """A palette, and for each pixel the index of its colour in it."""
    colours, inverse, counts = np.unique(pixels.reshape(-1, 3), axis=0, return_inverse=True, return_counts=True)
    palette = colours if len(colours) <= MAX_COLOURS else _palette(colours, counts)
    distance = ((colours[:, None].astype(np.int32) - palette[None].astype(np.int32)) ** 2).sum(axis=2)
    nearest = distance.argmin(axis=1).astype(np.uint8)
    return palette, nearest[inverse.ravel()].reshape(pixels.shape[:2])


def _palette(colours: Bytes, counts: npt.NDArray[np.int64]) -> Bytes:
    """Half of the palette are the commonest colours; rare ones, as at the edges of letters, share the other half."""
    half, lost = MAX_COLOURS // 2, 8 - _COARSE_BITS
    commonest = colours[np.argsort(-counts)[:half]]
    coarse = np.minimum((colours.astype(np.int16) >> lost << lost) + (1 << lost - 1), 255).astype(np.uint8)
    shared, of = np.unique(coarse, axis=0, return_inverse=True)
    weights = np.bincount(of.ravel(), weights=counts)
    chosen: Bytes = np.unique(np.concatenate([commonest, shared[np.argsort(-weights)[:half]]]), axis=0)
    return chosen


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
