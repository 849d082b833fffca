"""Bans the tokens that the grammars of a step's rows do not let come next."""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from llguidance import LLExecutor, LLMatcher

from baton_serve.workers.rank.grammar.library import Constraint

#: A word of a mask in which every token may come next.
_ALL = -1
_WORD_BYTES = 4


class MaskWriter:
    """Computes masks in a thread, without Python's lock, while the forward pass runs in another.

    Bare queues hand over to the thread and back: an executor with its futures takes ten times as long, which is felt in
    the steps of a small model.
    """

    @cached_property
    def _wanted(self) -> queue.SimpleQueue[_Wanted]:
        """What the thread reads, which runs from the first request with a grammar on."""
        wanted: queue.SimpleQueue[_Wanted] = queue.SimpleQueue()
        threading.Thread(target=_write_masks, args=(wanted,), name="masks", daemon=True).start()
        return wanted

    def begin(self, constraints: Sequence[Constraint | None], mask_words: int) -> Masks | None:
        """Begin the masks of a step's rows; None if no row has a grammar. The grammars must stay where they are
        until the masks have been applied.

        ``mask_words`` is the number of 32-bit words for the whole vocabulary.
        """
        bound = [(index, constraint) for index, constraint in enumerate(constraints) if constraint is not None]
        if not bound:
            return None
        words = torch.empty((len(bound), mask_words), dtype=torch.int32)
        matchers = []
        for number, (_, constraint) in enumerate(bound):
            matcher = constraint.matcher
            if matcher is None:
                words[number].fill_(_ALL)
            else:
                matchers.append((matcher, number))
        masks = Masks(bound, words)
        if matchers:
            self._wanted.put(_Wanted(matchers, words, masks.written))
        else:
            masks.written.put([])
        return masks


class _Wanted(NamedTuple):
    """Masks to write. ``written`` gets the numbers of those that could not be, or what the library raised."""

    matchers: list[tuple[LLMatcher, int]]
    words: torch.Tensor
    written: queue.SimpleQueue[list[int] | BaseException]

    def write(self, executor: LLExecutor) -> list[int]:
        row_bytes = self.words.shape[1] * _WORD_BYTES
        executor.unsafe_compute_mask_ptr(self.matchers, self.words.data_ptr(), row_bytes, len(self.words))
        return [number for matcher, number in self.matchers if matcher.is_error()]


def _write_masks(wanted: queue.SimpleQueue[_Wanted]) -> None:
    executor = None
    while True:
        step = wanted.get()
        try:
            executor = executor or LLExecutor(num_threads=1)
            result: list[int] | BaseException = step.write(executor)
        except BaseException as error:  # noqa: BLE001 (a panic of the library's Rust is no Exception; a step waits)
            result = error
        step.written.put(result)
        del step, result  # the memory of a step is not kept until the next one comes


class Masks:
    """The masks of one step, as bits, and the rows that have one."""

    def __init__(self, bound: Sequence[tuple[int, Constraint]], words: torch.Tensor) -> None:
        self._bound = bound
        self._words = words
        self.written: queue.SimpleQueue[list[int] | BaseException] = queue.SimpleQueue()

    def apply(self, scores: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        """A copy of the scores ``[row, vocabulary]`` with -inf for banned tokens. To be called once.

        Where parameters of the request have banned all tokens that the grammar lets come next (``min_tokens`` bans the
        end of an answer that can only end, say), the grammar wins: the row gets its ``logits``.

        Raises what the library raises for a call that is wrong; a grammar that fails raises nothing.
        """
        failed = self.written.get()
        if isinstance(failed, BaseException):
            raise failed
        for number in failed:
            self._bound[number][1].fail()
            self._words[number].fill_(_ALL)
        if len(self._bound) == scores.shape[0]:
            return self._masked(scores, logits)
        index = torch.tensor([row for row, _ in self._bound], device=scores.device)
        some = scores[index]
        return scores.index_copy(0, index, self._masked(some, some if scores is logits else logits[index]))

    def _masked(self, scores: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        masked = banned(scores, self._words)
        if scores is logits:  # no parameter has banned anything
            return masked
        is_empty = masked.isneginf().all(dim=-1, keepdim=True)
        return torch.where(is_empty, banned(logits, self._words), masked)


def banned(scores: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
    """A copy of the scores, float32 ``[row, vocabulary]``, with -inf for the tokens whose bits are not set.

    ``words``: int32 ``[row, word]`` on the CPU, bits from the lowest on.
    """
    bits = np.unpackbits(words.numpy().view(np.uint8), axis=1, count=scores.shape[1], bitorder="little")
    is_allowed = torch.from_numpy(bits).view(torch.bool).to(scores.device)
    return scores.where(is_allowed, float("-inf"))
