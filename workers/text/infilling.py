"""How a model is asked for the middle of a text: by three tokens around the beginning and the end. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Container

#: The tokens before the beginning, before the end, and before the answer, in the families of models that have them.
FAMILIES = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    ("<\uff5cfim\u2581begin\uff5c>", "<\uff5cfim\u2581hole\uff5c>", "<\uff5cfim\u2581end\uff5c>"),
)


def infilling_prompt(added: Container[str], beginning: str, end: str) -> str | None:
    """The prompt for the text between ``beginning`` and ``end``; None if ``added`` has no family's tokens."""
    for before_beginning, before_end, before_answer in FAMILIES:
        if before_beginning in added and before_end in added and before_answer in added:
            return f"{before_beginning}{beginning}{before_end}{end}{before_answer}"
    return None
