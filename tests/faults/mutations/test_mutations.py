"""The mutations can still be made, and name tests that exist; whether these notice is asked by the program itself."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.faults.mutations.copy import ROOT
from tests.faults.mutations.mutation import Change, Mutation, RottenMutationError, restore
from tests.faults.mutations.table import MUTATIONS


def test_names_are_unique() -> None:
    assert len({mutation.name for mutation in MUTATIONS}) == len(MUTATIONS)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=[mutation.name for mutation in MUTATIONS])
def test_a_mutation_can_be_made_and_names_tests(mutation: Mutation) -> None:
    mutation.check(ROOT)
    assert mutation.tests
    for test in mutation.tests:
        path, _, name = test.partition("::")
        tree = ast.parse((ROOT / path).read_text("utf-8"))
        names = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
        names |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        assert not name or name in names, f"{path} has no {name}"


def test_a_text_that_is_not_there_once_is_refused_before_anything_is_changed(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("one two two")
    for old in ("two", "three"):
        changes = (Change("a.py", "one", "1"), Change("a.py", old, "2"))
        with pytest.raises(RottenMutationError, match=r"'name': a\.py has this \d times"):
            Mutation("name", "what", changes, ("test",)).apply(tmp_path)
        assert (tmp_path / "a.py").read_text() == "one two two"
    with pytest.raises(RottenMutationError, match="does not exist"):
        Mutation("name", "what", (Change("b.py", "one", "1"),), ("test",)).apply(tmp_path)


def test_several_changes_of_one_file_are_undone(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("one two")
    before = Mutation("name", "what", (Change("a.py", "one", "1"), Change("a.py", "two", "2")), ("test",)).apply(
        tmp_path
    )
    assert (tmp_path / "a.py").read_text() == "1 2"
    restore(before)
    assert (tmp_path / "a.py").read_text() == "one two"


def test_the_track_record_names_tests_that_exist() -> None:
    """docs/track-record.md: each `path::test`, or `path` alone."""
    record = (ROOT / "docs" / "track-record.md").read_text("utf-8")
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", record)
    assert len(named) > 20
    for path, name in named:
        assert (ROOT / path).is_file(), path
        text = (ROOT / path).read_text("utf-8")
        assert not name or re.search(rf"\b(?:def|class) {name}\b", text), f"{path} has no {name}"
