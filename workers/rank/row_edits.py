"""What a client's parameters change in the logits of its own sequence: biases, bans and penalties.

They are built once, and then changed by each token that is sampled.

A step copies what is here, without a loop in Python over a prompt or a list that a client sent: all other rows of the
step would wait for that.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

import torch

from baton_serve.core.protocol.steps import SamplingParams

_ROOT = 0


class BadWords:
    """The banned words, and how far into which of them the output is.

    A word that begins in the prompt is none of the output's words, as with vLLM. Words with the same beginning share
    the nodes of a tree, so a token costs as many look-ups as the output is amid beginnings of different lengths.
    """

    def __init__(self, words: Iterable[Sequence[int]]) -> None:
        self._next: dict[tuple[int, int], int] = {}
        self._last: dict[int, array[int]] = {}
        for word in words:
            node = _ROOT
            for token in word[:-1]:
                node = self._next.setdefault((node, token), len(self._next) + 1)
            self._last.setdefault(node, array("q")).append(word[-1])
        self._amid = [_ROOT]

    def append(self, token: int) -> None:
        """The output has one token more."""
        reached = (self._next.get((node, token)) for node in self._amid)
        self._amid = [_ROOT, *(node for node in reached if node is not None)]

    def completing(self) -> array[int]:
        """The last token of each word whose other tokens are the last of the output."""
        found = array("q")
        for node in self._amid:
            if node in self._last:
                found += self._last[node]
        return found


class RowEdits:
    """What the parameters of a sequence do to the next token's logits. Tokens are arrays of int64."""

    def __init__(self, params: SamplingParams, vocab_size: int, prompt: Sequence[int], outputs: Sequence[int]) -> None:
        self._params = params
        # Token ids come from clients. The HTTP server refuses unknown ids; one that gets here must not end the rank.
        bias = {token: number for token, number in params.logit_bias.items() if 0 <= token < vocab_size}
        self.biased = array("q", bias)
        self.biases = array("f", bias.values())
        self._ends = _known(params.min_tokens_banned, vocab_size)
        words = [word for word in params.bad_words if len(_known(word, vocab_size)) == len(word)]
        self._words = BadWords(words) if words else None
        #: Added to all logits: 0 for the tokens that may be sampled, else -inf. None: all may. To gather and scatter
        #: 16,384 of 128,000 numbers takes seven times as long as this sum.
        self.allowed = None if params.allowed_token_ids is None else _allowing(params.allowed_token_ids, vocab_size)
        #: Tokens of prompt and output, if the repetition penalty needs them.
        self.seen = array("q")
        #: Tokens of the output, and what frequency and presence penalties subtract from them.
        self.counted = array("q")
        self.penalties = array("f")
        self._times = array("q")
        self._places: dict[int, int] = {}
        self._seen: set[int] = set()
        self._num_outputs = 0
        if self.repetition_penalty != 1.0:
            self._see(prompt)
        for token in outputs:
            self.append(token)

    @property
    def repetition_penalty(self) -> float:
        return self._params.repetition_penalty

    def append(self, token: int) -> None:
        """The output has one token more."""
        self._num_outputs += 1
        if self._words is not None:
            self._words.append(token)
        if self.repetition_penalty != 1.0 and token not in self._seen:
            self._see((token,))
        if self._params.frequency_penalty or self._params.presence_penalty:
            self._count(token)

    def banned(self) -> array[int]:
        """The tokens that may not come next, those that are not allowed aside."""
        found = array("q")
        if self._num_outputs < self._params.min_tokens:
            found += self._ends
        if self._words is not None:
            found += self._words.completing()
        return found

    def _see(self, tokens: Iterable[int]) -> None:
        fresh = set(tokens) - self._seen
        self._seen |= fresh
        self.seen.extend(fresh)

    def _count(self, token: int) -> None:
        place = self._places.setdefault(token, len(self._places))
        if place == len(self.counted):
            self.counted.append(token)
            self._times.append(0)
            self.penalties.append(0.0)
        self._times[place] += 1
        self.penalties[place] = self._params.frequency_penalty * self._times[place] + self._params.presence_penalty


def row_edits(
    params: SamplingParams, vocab_size: int, prompt: Sequence[int], outputs: Sequence[int]
) -> RowEdits | None:
    """The edits of a sequence; None if its parameters change no logits."""
    is_untouched = (
        not params.logit_bias
        and not params.bad_words
        and params.allowed_token_ids is None
        and not (params.min_tokens > len(outputs) and params.min_tokens_banned)
        and params.repetition_penalty == 1.0
        and params.frequency_penalty == 0.0
        and params.presence_penalty == 0.0
    )
    return None if is_untouched else RowEdits(params, vocab_size, prompt, outputs)


def _allowing(tokens: Iterable[int], vocab_size: int) -> torch.Tensor:
    added = torch.full((vocab_size,), float("-inf"))
    added[torch.tensor(_known(tokens, vocab_size), dtype=torch.int64)] = 0.0
    return added


def _known(tokens: Iterable[int], vocab_size: int) -> array[int]:
    return array("q", (token for token in tokens if 0 <= token < vocab_size))
