"""The bytes that a vocabulary entry stands for, in the two kinds of vocabularies of decoder-only models. Pure."""

from __future__ import annotations

import re

_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _byte_level_alphabet() -> dict[str, int]:
    """GPT-2's character for each byte: visible Latin-1 characters for themselves, U+0100 and later for the rest."""
    visible = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    hidden = [byte for byte in range(256) if byte not in set(visible)]
    return {chr(byte): byte for byte in visible} | {chr(256 + i): byte for i, byte in enumerate(hidden)}


_ALPHABET = _byte_level_alphabet()


def byte_level_bytes(piece: str) -> bytes:
    """Byte-level BPE: every character stands for one byte; an added token is plain text."""
    if all(character in _ALPHABET for character in piece):
        return bytes(_ALPHABET[character] for character in piece)
    return piece.encode()


def sentencepiece_bytes(piece: str) -> bytes:
    """SentencePiece: ``<0xE2>`` is a byte, U+2581 a space."""
    byte = _BYTE_PIECE.fullmatch(piece)
    return bytes([int(byte[1], 16)]) if byte else piece.replace("\u2581", " ").encode()
