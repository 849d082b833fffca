"""What the measurement of policies asks, and how it shows what it found; and the small PNG of the screenshot."""

from __future__ import annotations

import struct
import zlib

import numpy as np

from bench.picture import MAX_COLOURS, png_of
from bench.policies import PolicyResult, conversations, table


def test_a_workload_differs_only_in_how_its_prompts_begin() -> None:
    one, other = (conversations(3, salt, 20.0, 2.0) for salt in ("a", "b"))
    assert one == conversations(3, "a", 20.0, 2.0)
    assert [(c.begin_s, c.turns, c.system[1:]) for c in one] == [(c.begin_s, c.turns, c.system[1:]) for c in other]
    assert {c.system[0] for c in one} == {"a"}
    assert len({c.system for c in one}) < len(one) / 2, "beginnings are shared"


def test_conversations_come_in_bursts() -> None:
    begins_s = [c.begin_s for c in conversations(1, "", 200.0, 2.0)]
    in_bursts = sum(begin_s % 10 < 2 for begin_s in begins_s)
    assert 0.35 < in_bursts / len(begins_s) < 0.65, "a fifth of the time"


def test_a_row_shows_medians_and_every_failure() -> None:
    rows = [PolicyResult(100.0, p99, 0.5, 0.25, 3.0, failed) for p99, failed in ((900.0, 0), (200.0, 1), (300.0, 1))]
    assert table({("prefix", "affinity"): rows}).splitlines()[-1] == (
        "| prefix | affinity | 100 | 300 | 50% | 25% | 3.0 | 2 |"
    )


def unpacked(png: bytes) -> tuple[bytes, np.ndarray[tuple[int, int], np.dtype[np.uint8]]]:
    """The palette and the indices."""
    chunks, at = {}, 8
    while at < len(png):
        (length,) = struct.unpack_from(">I", png, at)
        chunks[png[at + 4 : at + 8]] = png[at + 8 : at + 8 + length]
        assert struct.unpack_from(">I", png, at + 8 + length) == (zlib.crc32(png[at + 4 : at + 8 + length]),)
        at += length + 12
    width, height = struct.unpack_from(">II", chunks[b"IHDR"])
    rows = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, width + 1)
    assert not rows[:, 0].any()
    return chunks[b"PLTE"], rows[:, 1:]


def test_a_picture_of_few_colours_stays_as_it_is() -> None:
    pixels = np.random.default_rng(1).choice(np.array([[0, 0, 0], [255, 128, 1], [7, 8, 9]], np.uint8), (12, 34))
    palette, indices = unpacked(png_of(pixels))
    assert (np.frombuffer(palette, np.uint8).reshape(-1, 3)[indices] == pixels).all()


def test_of_many_colours_the_commonest_stay_and_others_are_near() -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (60, 60, 3), np.uint8)
    pixels[:30] = (10, 20, 30)
    palette, indices = unpacked(png_of(pixels))
    colours = np.frombuffer(palette, np.uint8).reshape(-1, 3)
    assert len(colours) <= MAX_COLOURS
    assert (colours[indices][:30] == (10, 20, 30)).all()
    assert abs(colours[indices].astype(int) - pixels).mean() < 32
