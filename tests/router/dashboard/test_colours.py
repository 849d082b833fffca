"""The style sheet of the dashboard: one colour, one meaning, and all text can be read in both schemes. No browser."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest

from baton_serve.router.dashboard.routes import page_file
from baton_serve.router.request.states import LIVE

CSS = re.sub(r"/\*.*?\*/", "", page_file("dashboard.css").decode(), flags=re.DOTALL)
LIGHT, DARK = (
    dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block))
    for block in re.findall(r":root \{(.*?)\}", CSS, flags=re.DOTALL)
)
STATES = [str(state) for state in LIVE]
MEANINGS = [*STATES, "warn", "bad"]
SCHEMES = pytest.mark.parametrize("scheme", [LIGHT, DARK], ids=["light", "dark"])


def rules() -> list[tuple[str, str]]:
    """Selector and declarations of each rule below the colours."""
    return re.findall(r"([^{}]+)\{([^{}]*)\}", CSS.rpartition(":root")[2].partition("}")[2])


def luminance(colour: str) -> float:
    """As WCAG 2 defines it."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_colours_are_named_in_one_place() -> None:
    assert LIGHT.keys() == DARK.keys() >= set(MEANINGS)
    for selector, declarations in rules():
        assert not re.search(r"#[0-9a-f]{3,8}\b|\brgba?\((?!from var)|hsl\(", declarations), selector


@SCHEMES
def test_no_two_meanings_look_alike(scheme: dict[str, str]) -> None:
    assert len(set(scheme.values())) == len(scheme)


@pytest.mark.parametrize("state", STATES)
def test_a_state_has_its_colour_to_itself(state: str) -> None:
    """Held requests are those whose blocks are under a lease, so a lease is drawn in the colour of held."""
    names = [state, "lease"] if state == "held" else [state]
    users = [selector.strip() for selector, text in rules() if f"var(--{state})" in text]
    assert users and all(any(name in user for name in names) for user in users)


@SCHEMES
def test_text_can_be_read_and_parts_can_be_told_from_their_ground(scheme: dict[str, str]) -> None:
    for ground in ("back", "card"):
        for text in ("ink", "dim", *MEANINGS):
            assert contrast(scheme[text], scheme[ground]) >= 4.5, (text, ground)
    steps = [scheme[shade] for shade in ("dim", "soft", "track")]
    assert all(contrast(one, other) >= 1.5 for one, other in pairwise(steps)), "pinned, cached and free"
