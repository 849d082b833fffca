"""The beginnings of prompts, as chunk hashes, in a tree that has what prompts have in common once.

A radix tree (D. R. Morrison, "PATRICIA", 1968): what nothing branches off from is one run of chunks. A conversation is
one run that grows, and prompts with one system prompt are runs behind it. Each hash stands for everything before it
too, so runs are compared by a binary search, and a chunk has one place in the tree.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Collection

    Run: TypeAlias = tuple[int, ...]
    Branch: TypeAlias = "Run | _Fork"


class _Fork:
    """A run behind which prompts differ."""

    __slots__ = ("branches", "run")

    def __init__(self, run: Run, branches: dict[int, Branch]) -> None:
        self.run = run
        #: By their first chunks.
        self.branches = branches


class PrefixTree:
    """A prompt is the tuple of its chunks, and is not empty."""

    __slots__ = ("_branches",)

    def __init__(self) -> None:
        self._branches: dict[int, Branch] = {}

    def longest(self, prompt: Run) -> int:
        """The number of the prompt's chunks, from the first on, that are in the tree."""
        branches, begin = self._branches, 0
        while begin < len(prompt):
            branch = branches.get(prompt[begin])
            if branch is None:
                return begin
            run = branch if isinstance(branch, tuple) else branch.run
            num = _num_common(run, prompt, begin)
            begin += num
            if num < len(run) or isinstance(branch, tuple):
                return begin
            branches = branch.branches
        return begin

    def add(self, prompt: Run) -> None:
        """Add all of its chunks."""
        branches, begin = self._branches, 0
        while begin < len(prompt):
            first = prompt[begin]
            branch = branches.get(first)
            if branch is None:
                branches[first] = prompt[begin:]
                return
            run = branch if isinstance(branch, tuple) else branch.run
            num = _num_common(run, prompt, begin)
            end = begin + num
            if num < len(run):
                if end < len(prompt):
                    rest = run[num:] if isinstance(branch, tuple) else _Fork(run[num:], branch.branches)
                    branches[first] = _Fork(run[:num], {run[num]: rest, prompt[end]: prompt[end:]})
                return
            if isinstance(branch, tuple):  # it goes on where the others ended
                branches[first] = prompt[begin:]
                return
            branches, begin = branch.branches, end

    def firsts(self) -> Collection[int]:
        """The first chunks of its prompts."""
        return self._branches.keys()

    def behind(self, first: int) -> list[int]:
        """All chunks of the prompts with this first chunk; empty if there is none."""
        branch = self._branches.get(first)
        branches = [] if branch is None else [branch]
        chunks: list[int] = []
        while branches:
            branch = branches.pop()
            if isinstance(branch, tuple):
                chunks += branch
            else:
                chunks += branch.run
                branches += branch.branches.values()
        return chunks

    @property
    def only(self) -> Run:
        """Its only prompt; empty if it has several, none of which begins with all others."""
        if len(self._branches) != 1:
            return ()
        branch = next(iter(self._branches.values()))
        return branch if isinstance(branch, tuple) else ()


def _num_common(run: Run, prompt: Run, begin: int) -> int:
    """How many chunks of ``run`` the prompt has from ``begin`` on. The first one is the same."""
    most, too_many = 1, min(len(run), len(prompt) - begin) + 1
    while too_many - most > 1:
        middle = (most + too_many) // 2
        if run[middle - 1] == prompt[begin + middle - 1]:
            most = middle
        else:
            too_many = middle
    return most
