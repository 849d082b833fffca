"""What a policy may know about a request, before and after prefill."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from baton_serve.router.placement.chunks import NUM_BYTES, chunk_hashes
from baton_serve.router.placement.need import Need
from baton_serve.router.pool import Worker

#: Bytes of text in a token, roughly, in English and with today's vocabularies.
BYTES_PER_TOKEN: Final = 4


def _nothing() -> bytes:
    return b""


class Prompt:
    """What a policy may know about a request before prefill. ``num_bytes``: size of the prompt's text."""

    __slots__ = ("_chunks", "_text_bytes", "model", "num_bytes", "num_ids", "text")

    def __init__(
        self, model: str, num_bytes: int, text: Callable[[], bytes] = _nothing, num_ids: int | None = None
    ) -> None:
        """``num_ids``: number of tokens, if the prompt came as token ids."""
        self.model = model
        self.num_bytes = num_bytes
        #: Returns the canonical bytes of the prompt: prompts with equal beginnings have bytes with equal beginnings.
        self.text = text
        self.num_ids = num_ids
        self._chunks: tuple[int, ...] | None = None
        self._text_bytes = 0

    def __repr__(self) -> str:
        return f"<Prompt of {self.num_bytes} bytes for {self.model}>"

    @classmethod
    def hashed(cls, model: str, num_bytes: int, num_ids: int, chunks: tuple[int, ...]) -> Prompt:
        """A prompt of which only the length and the hashes of its chunks are known, as in the simulation."""
        prompt = cls(model, num_bytes, num_ids=num_ids)
        prompt._chunks = chunks
        prompt._text_bytes = num_bytes
        return prompt

    @property
    def chunks(self) -> tuple[int, ...]:
        """See ``chunk_hashes``. Computed at the first use, so that only policies that use it pay for it."""
        if self._chunks is None:
            text = self.text()
            self._text_bytes = len(text)
            self._chunks = chunk_hashes(text, self.model)
        return self._chunks

    def num_tokens_behind(self, num_chunks: int) -> int:
        """An estimate of the number of the prompt's tokens after its first ``num_chunks`` chunks."""
        if not self.chunks:
            return self.num_tokens
        return math.ceil(self.num_tokens * max(0.0, 1 - NUM_BYTES[num_chunks] / self._text_bytes))

    @property
    def num_tokens(self) -> int:
        """The number of the prompt's tokens: an estimate, unless it came as token ids."""
        return self.num_bytes // BYTES_PER_TOKEN if self.num_ids is None else self.num_ids

    @property
    def need(self) -> Need:
        """The room that the request takes on the worker that prefills."""
        return Need(self.num_tokens, exact=self.num_ids is not None)


class Prefilled:
    """What a policy may know about a request after prefill. ``source`` holds its blocks; None: no worker does.

    ``num_tokens``: the prompt's number of tokens as P counted them; 0: P did not report it, or there was no P.
    """

    __slots__ = ("num_tokens", "prompt", "source")

    def __init__(self, prompt: Prompt, source: Worker | None, num_tokens: int) -> None:
        self.prompt = prompt
        self.source = source
        self.num_tokens = num_tokens

    def __repr__(self) -> str:
        return f"<Prefilled: {self.num_tokens} tokens on {self.source}>"

    @property
    def need(self) -> Need:
        """The room that the request takes on the worker that decodes."""
        if not self.num_tokens:
            return Need(self.prompt.num_tokens, exact=self.prompt.num_ids is not None, source=self.source)
        return Need(self.num_tokens, exact=True, source=self.source)
