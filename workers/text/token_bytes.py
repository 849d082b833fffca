"""The bytes that a vocabulary entry stands for, in the two kinds of vocabularies of decoder-only models. Pure."""

from __future__ import annotations

import re

_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _byte_level_alphabet() -> dict[str, int]:
    """The byte of each character in GPT-2's alphabet: visible Latin-1 characters stand for themselves, those from
    U+0100 on for the remaining bytes.
    """
    visible = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    hidden = [byte for byte in range(256) if byte not in set(visible)]
    return {chr(byte): byte for byte in visible} | {chr(256 + i): byte for i, byte in enumerate(hidden)}


_ALPHABET = _byte_level_alphabet()


def byte_level_bytes(piece: str) -> bytes:
    """The bytes of a byte-level BPE piece: every character stands for one byte; an added token is plain text."""
    if all(character in _ALPHABET for character in piece):
        return bytes(_ALPHABET[character] for character in piece)
    return piece.encode()


def sentencepiece_bytes(piece: str) -> bytes:
    """The bytes of a SentencePiece piece: ``<0xE2>`` stands for one byte, U+2581 for a space."""
    byte = _BYTE_PIECE.fullmatch(piece)
    return bytes([int(byte[1], 16)]) if byte else piece.replace("\u2581", " ").encode()
