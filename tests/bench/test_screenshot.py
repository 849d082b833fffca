"""The small picture of the screenshot."""

from __future__ import annotations

from io import BytesIO

import numpy as np
from PIL import Image

from bench.screenshot import MAX_COLOURS, in_few_colours


def png_of(pixels: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> bytes:
    made = BytesIO()
    Image.fromarray(pixels).save(made, "PNG")
    return made.getvalue()


def test_a_picture_of_few_colours_stays_as_it_is() -> None:
    pixels = np.random.default_rng(1).choice(np.array([[0, 0, 0], [255, 128, 1], [7, 8, 9]], np.uint8), (12, 34))
    assert (np.asarray(in_few_colours(png_of(pixels)).convert("RGB")) == pixels).all()


def test_of_many_colours_the_commonest_stay_and_others_are_near() -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (60, 60, 3), np.uint8)
    pixels[:30] = (10, 20, 30)
    small = in_few_colours(png_of(pixels))
    shown = np.asarray(small.convert("RGB"))
    assert small.mode == "P" and len(small.getcolors() or ()) <= MAX_COLOURS
    assert (shown[:30] == (10, 20, 30)).all()
    assert abs(shown.astype(int) - pixels).mean() < 32
