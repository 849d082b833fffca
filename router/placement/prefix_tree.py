"""The beginnings of prompts, as chunk hashes, in a tree that has what prompts have in common once.

A radix tree (D. R. Morrison, "PATRICIA", 1968): what nothing branches off from is one run of chunks. A conversation is
one run that grows, and prompts with one system prompt are runs behind it. Each hash stands for everything before it
too, so runs are compared by a binary search, and a chunk has one place in the tree.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Collection

    Run: TypeAlias = tuple[int, ...]
    #: A run at whose end the tree ends; a run behind which it goes on; or the chunks of many, in no order.
    Branch: TypeAlias = "Run | _Fork | set[int]"

#: Where a prompt has passed so many forks, what is behind is kept as one set: prompts that differ in every chunk would
#: make each search slow.
MAX_FORKS: Final = 8


class _Fork:
    """A run behind which prompts differ."""

    __slots__ = ("branches", "run")

    def __init__(self, run: Run, branches: dict[int, Branch]) -> None:
        self.run = run
        #: By their first chunks.
        self.branches = branches


class PrefixTree:
    """A prompt is the tuple of its chunks: of all from its first one on, each a hash of everything up to its end."""

    __slots__ = ("_branches", "num_bytes")

    def __init__(self) -> None:
        self._branches: dict[int, Branch] = {}
        #: Bytes of prompt text, as the caller of ``add`` counts them.
        self.num_bytes = 0

    def longest(self, prompt: Run) -> int:
        """The number of the prompt's chunks, from the first on, that are in the tree."""
        branches, begin = self._branches, 0
        while begin < len(prompt):
            branch = branches.get(prompt[begin])
            if branch is None:
                return begin
            some = branch.run if isinstance(branch, _Fork) else branch
            num = _num_in(some, prompt, begin)
            begin += num
            if num < len(some) or not isinstance(branch, _Fork):
                return begin
            branches = branch.branches
        return begin

    def add(self, prompt: Run) -> None:
        """Add all of its chunks."""
        branches, begin, num_forks = self._branches, 0, 0
        while begin < len(prompt):
            first = prompt[begin]
            branch = branches.get(first)
            if branch is None:
                branches[first] = prompt[begin:]
                return
            if num_forks == MAX_FORKS and isinstance(branch, _Fork):
                branch = branches[first] = set(_chunks_of([branch]))
            if isinstance(branch, set):
                branch.update(prompt[begin:])
                return
            run = branch if isinstance(branch, tuple) else branch.run
            num = _num_in(run, prompt, begin)
            end = begin + num
            if num < len(run):
                if end < len(prompt):
                    rest = run[num:] if isinstance(branch, tuple) else _Fork(run[num:], branch.branches)
                    branches[first] = _Fork(run[:num], {run[num]: rest, prompt[end]: prompt[end:]})
                return
            if isinstance(branch, tuple):  # it goes on where the others ended
                branches[first] = prompt[begin:]
                return
            branches, begin, num_forks = branch.branches, end, num_forks + 1

    def firsts(self) -> Collection[int]:
        """The first chunks of its prompts."""
        return self._branches.keys()

    def behind(self, first: int) -> Collection[int]:
        """All chunks of the prompts with this first chunk; empty if there is none."""
        branch = self._branches.get(first)
        if branch is None:
            return ()
        return _chunks_of([branch]) if isinstance(branch, _Fork) else branch

    def chunks(self) -> list[int]:
        """All chunks of all prompts."""
        return _chunks_of(list(self._branches.values()))

    @property
    def only(self) -> Run:
        """Its only prompt; empty if it has several, none of which begins with all others."""
        if len(self._branches) != 1:
            return ()
        branch = next(iter(self._branches.values()))
        return branch if isinstance(branch, tuple) else ()


def _chunks_of(branches: list[Branch]) -> list[int]:
    """Empties ``branches``."""
    chunks: list[int] = []
    while branches:
        branch = branches.pop()
        if isinstance(branch, _Fork):
            chunks += branch.run
            branches += branch.branches.values()
        else:
            chunks += branch
    return chunks


def _num_in(some: Run | set[int], prompt: Run, begin: int) -> int:
    """How many chunks of a run, or of a set, the prompt has from ``begin`` on. The first one it has."""
    most, too_many = 1, len(prompt) - begin + 1
    if isinstance(some, tuple):
        too_many = min(too_many, len(some) + 1)
    while too_many - most > 1:
        middle = (most + too_many) // 2
        chunk = prompt[begin + middle - 1]
        if (some[middle - 1] == chunk) if isinstance(some, tuple) else (chunk in some):
            most = middle
        else:
            too_many = middle
    return most
