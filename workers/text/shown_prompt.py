"""What an answer shows of its prompt: its text, and logprobs of its tokens in the shapes of OpenAI and vLLM. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from baton_serve.core.protocol.steps import PromptScores
from baton_serve.workers.text.json_list import JsonList
from baton_serve.workers.text.logprobs import CompletionLogprobs, finite

if TYPE_CHECKING:
    import orjson

#: A part of a stream has about so many bytes at most: a quarter of what routers take in an event.
PART_BYTES = 1 << 18
#: What a token takes in JSON: a name and a number for itself and for each alternative, twice what most of them take.
TOKEN_BYTES = 64


class PromptLogprobs:
    """``prompt_logprobs`` in vLLM's shape: a list with an object for each token of the prompt, null for the first one.

    Add the tokens after the first one in order. ``num_top``: how many of the most likely tokens are listed."""

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
        return self._entries.value()

    def _one(self, token: int, logprob: float, rank: int) -> dict[str, Any]:
        text = self._token_bytes(token).decode(errors="replace")
        return {"logprob": finite(logprob), "rank": rank, "decoded_token": text}


class ShownPrompt:
    """The prompt of one answer. Add the scores of all of its tokens before the answer's first token.

    ``texts``: the text of each token, if the answer begins with the prompt. ``lists`` are the answer's logprobs, which
    then begin with the prompt's, ``num_top`` of them for each token. ``entries``: vLLM's ``prompt_logprobs``.
    ``in_parts``: for a stream; nothing is left in ``lists`` then.
    """

    def __init__(
        self,
        tokens: Sequence[int],
        texts: Sequence[str] = (),
        lists: CompletionLogprobs | None = None,
        entries: PromptLogprobs | None = None,
        *,
        num_top: int = 0,
        in_parts: bool = False,
    ) -> None:
        self._tokens = tokens
        self._texts = texts
        self._lists = lists
        self._entries = entries
        self._num_top = num_top
        self._in_parts = in_parts
        self._part_tokens = max(1, PART_BYTES // (TOKEN_BYTES * (1 if lists is None else num_top + 2)))
        self._offset = 0
        self._parts: list[tuple[str, dict[str, Any] | None]] = []
        if lists is not None:
            self._list(0, None, ())

    @property
    def text(self) -> str:
        return "".join(self._texts)

    @property
    def entries(self) -> list[Any] | orjson.Fragment | None:
        """vLLM's ``prompt_logprobs``; None: not wanted."""
        return None if self._entries is None else self._entries.value()

    def add(self, scores: PromptScores) -> Iterator[None]:
        """Add the scores of some tokens, one at each step: a caller may do something else in between."""
        for index, (logprob, rank, tokens, values) in enumerate(
            zip(scores.logprobs, scores.ranks, scores.top_tokens, scores.top_logprobs, strict=True), scores.start
        ):
            if self._entries is not None:
                self._entries.add(self._tokens[index], logprob, rank, tokens, values)
            if self._lists is not None:
                self._list(index, logprob, list(zip(tokens, values, strict=True))[: self._num_top])
            yield

    def parts(self) -> Iterator[tuple[str, dict[str, Any] | None]]:
        """The text in parts for the events of a stream, each with its logprobs."""
        if self._lists is not None:
            yield from self._parts
        elif self._texts:
            for start in range(0, len(self._tokens), self._part_tokens):
                yield self._text_of(start, start + self._part_tokens), None

    def _list(self, index: int, logprob: float | None, top: Sequence[tuple[int, float]]) -> None:
        assert self._lists is not None
        self._lists.add_prompt(self._tokens[index], self._offset, logprob, top)
        self._offset += len(self._texts[index])
        end = index + 1
        if self._in_parts and (end % self._part_tokens == 0 or end == len(self._tokens)):
            start = index // self._part_tokens * self._part_tokens
            self._parts.append((self._text_of(start, end), self._lists.take()))

    def _text_of(self, start: int, end: int) -> str:
        return "".join(self._texts[start:end])
