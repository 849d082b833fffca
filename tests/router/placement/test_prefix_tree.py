"""The tree of prompts has what it was given, once."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton_serve.router.placement.prefix_tree import MAX_FORKS, PrefixTree, _Fork

#: Over a small alphabet, so that prompts share beginnings of all lengths; a hash is of everything before, as in life.
PROMPTS = st.text("ab", min_size=1, max_size=3 * MAX_FORKS).map(
    lambda letters: tuple(hash(letters[: i + 1]) for i in range(len(letters)))
)


def tree_of(prompts: list[tuple[int, ...]]) -> PrefixTree:
    tree = PrefixTree()
    for prompt in prompts:
        tree.add(prompt)
    return tree


@given(st.lists(PROMPTS, max_size=20), PROMPTS)
def test_the_tree_knows_the_longest_beginning_of_a_prompt(sent: list[tuple[int, ...]], asked: tuple[int, ...]) -> None:
    known = {prompt[: num + 1] for prompt in sent for num in range(len(prompt))}
    num_known = sum(asked[: num + 1] in known for num in range(len(asked)))
    assert tree_of(sent).longest(asked) == num_known


@given(st.lists(PROMPTS, max_size=20))
def test_the_tree_has_each_chunk_once_and_behind_its_first_one(sent: list[tuple[int, ...]]) -> None:
    tree = tree_of(sent)
    firsts = {prompt[0] for prompt in sent}
    assert set(tree.firsts()) == firsts and len(tree.firsts()) == len(firsts)
    for first in firsts:
        behind = tree.behind(first)
        assert len(behind) == len(set(behind))
        assert set(behind) == {chunk for prompt in sent if prompt[0] == first for chunk in prompt}
    assert not tree.behind(1)


@given(st.lists(PROMPTS, max_size=4))
def test_the_only_prompt_of_a_tree_is_the_one_that_begins_with_all_others(sent: list[tuple[int, ...]]) -> None:
    longest = max(sent, key=len, default=())
    is_only = all(longest[: len(prompt)] == prompt for prompt in sent)
    assert tree_of(sent).only == (longest if is_only else ())


def test_a_conversation_is_one_run_that_grows() -> None:
    """And what is behind one system prompt is kept without it."""
    turns = [tuple(range(num)) for num in (1, 4, 9, 100)]
    tree = tree_of(turns)
    assert tree.only is turns[-1]
    other = (*range(50), *range(1000, 1020))
    tree.add(other)
    assert (tree.only, len(tree.behind(0))) == ((), 120)
    assert (tree.longest((*range(50), 7)), tree.longest(turns[-1]), tree.longest(other)) == (50, 100, 70)


@pytest.mark.parametrize("order", ["deeper and deeper", "from the deepest up", "any"])
def test_prompts_that_part_at_every_chunk_make_no_deep_tree(order: str) -> None:
    common = tuple(range(100))
    teeth = [(*common[:num], 1000 + num) for num in range(1, 101)]
    if order == "from the deepest up":
        teeth.reverse()
    elif order == "any":
        random.Random(1).shuffle(teeth)
    tree = tree_of(teeth)
    tree.add(common)  # whoever goes all the way makes what is deep flat
    assert forks_on(tree, common) <= MAX_FORKS
    assert tree.longest(common) == 100
    assert all(tree.longest(tooth) == len(tooth) for tooth in teeth)
    assert (tree.longest((*common[:60], 7)), tree.longest((*common[:3], 7)), tree.longest((7,))) == (60, 3, 0)
    assert sorted(tree.behind(0)) == sorted({*common, *(tooth[-1] for tooth in teeth)})


def forks_on(tree: PrefixTree, prompt: tuple[int, ...]) -> int:
    branches, num = tree._branches, 0
    while True:
        branch = next((branches[chunk] for chunk in prompt if chunk in branches), None)
        if not isinstance(branch, _Fork):
            return num
        branches, num = branch.branches, num + 1
