"""``prompt_logprobs`` in vLLM's shape: a list with an object for each token of the prompt, null for the first one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from baton_serve.workers.text.json_list import JsonList
from baton_serve.workers.text.logprobs import finite

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import orjson


class PromptLogprobs:
    """Add the tokens after the first one in order. ``num_top``: how many of the most likely tokens are listed."""

    def __init__(self, token_bytes: Callable[[int], bytes], num_top: int) -> None:
        self._token_bytes = token_bytes
        self._num_top = num_top
        self._entries = JsonList()
        self._entries.append(None)

    def add(
        self, token: int, logprob: float, rank: int, top_tokens: Sequence[int], top_logprobs: Sequence[float]
    ) -> None:
        """Add a token, the first in its object. If it is one of the most likely ones, its rank is its place there."""
        entry = {str(token): self._one(token, logprob, rank)}
        for place in range(min(self._num_top, len(top_tokens))):
            other = top_tokens[place]
            entry[str(other)] = self._one(other, top_logprobs[place], place + 1)
        self._entries.append(entry)

    def value(self) -> list[Any] | orjson.Fragment:
        """The list so far."""
        return self._entries.value()

    def _one(self, token: int, logprob: float, rank: int) -> dict[str, Any]:
        text = self._token_bytes(token).decode(errors="replace")
        return {"logprob": finite(logprob), "rank": rank, "decoded_token": text}
