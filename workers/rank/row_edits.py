"""What a client's parameters change in the logits of its own sequence: biases, bans and penalties.

They are built once, and then changed by each token that is sampled.

What a step does with them does not grow with a prompt or with a list that a client sent: all other rows of the step
would wait for that. What concerns many tokens is a tensor of one number for each token of the vocabulary.
"""

from __future__ import annotations

from array import array
from collections import Counter
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
    """What the parameters of a sequence do to the next token's logits. Tensors are float32 ``[vocabulary]``."""

    def __init__(self, params: SamplingParams, vocab_size: int, prompt: Sequence[int], outputs: Sequence[int]) -> None:
        self._params = params
        self._vocab_size = vocab_size
        # Token ids come from clients. The HTTP server refuses unknown ids; one that gets here must not end the rank.
        bias = {token: number for token, number in params.logit_bias.items() if 0 <= token < vocab_size}
        self.biased = array("q", bias)
        self.biases = array("f", bias.values())
        self._ends = _known(params.min_tokens_banned, vocab_size)
        words = [word for word in params.bad_words if len(_known(word, vocab_size)) == len(word)]
        self._words = BadWords(words) if words else None
        #: Added to the logits: 0 for the tokens that may be sampled, else -inf. None: all may. To gather and scatter
        #: 16,384 of 128,000 numbers takes seven times as long as this sum.
        self.allowed = None if params.allowed_token_ids is None else _allowing(params.allowed_token_ids, vocab_size)
        #: By token of prompt and output the repetition penalty, else 1. None: there is none.
        self.repeated = None if params.repetition_penalty == 1.0 else torch.ones(vocab_size)
        #: Subtracted from the logits: frequency and presence penalties of the output. None: there are none.
        has_counts = params.frequency_penalty or params.presence_penalty
        self.subtracted = torch.zeros(vocab_size) if has_counts else None
        self._times: Counter[int] = Counter()
        self._num_outputs = 0
        if self.repeated is not None:
            self.repeated[torch.tensor(_known(prompt, vocab_size), dtype=torch.int64)] = params.repetition_penalty
        for token in outputs:
            self.append(token)

    @property
    def changes_many(self) -> bool:
        """Whether there is a tensor to apply."""
        return any(tensor is not None for tensor in (self.allowed, self.repeated, self.subtracted))

    def append(self, token: int) -> None:
        """The output has one token more."""
        self._num_outputs += 1
        if self._words is not None:
            self._words.append(token)
        if not 0 <= token < self._vocab_size:
            return
        if self.repeated is not None:
            self.repeated[token] = self._params.repetition_penalty
        if self.subtracted is not None:
            self._times[token] += 1
            self.subtracted[token] = self._params.frequency_penalty * self._times[token] + self._params.presence_penalty

    def banned(self) -> array[int]:
        """The tokens that may not come next, those that are not allowed aside."""
        found = array("q")
        if self._num_outputs < self._params.min_tokens:
            found += self._ends
        if self._words is not None:
            found += self._words.completing()
        return found

    def move(self, device: torch.device) -> None:
        """Have the tensors on this device, where they stay."""
        self.allowed, self.repeated, self.subtracted = (
            None if tensor is None else tensor.to(device) for tensor in (self.allowed, self.repeated, self.subtracted)
        )


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
