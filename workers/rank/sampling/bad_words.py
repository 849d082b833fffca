"""Which tokens would complete a sequence of tokens that the output may not have. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def completing(words: Iterable[Sequence[int]], tokens: Sequence[int], num_outputs: int) -> Iterable[int]:
    """The last token of each word whose other tokens are the last of the output.

    ``tokens`` are prompt and output. A word that begins in the prompt is none of the output's words, as with vLLM.
    """
    for word in words:
        before = len(word) - 1
        if before <= num_outputs and all(
            word[index] == tokens[len(tokens) - before + index] for index in range(before - 1, -1, -1)
        ):
            yield word[-1]
