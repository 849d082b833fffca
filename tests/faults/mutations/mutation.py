"""One known-bad change of the code: which text becomes which, and the tests that have to notice. Pure but for files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


class RottenMutationError(Exception):
    """The code has changed: a text is not there any more, or several times. The mutation has to be written anew."""


@dataclass(frozen=True)
class Change:
    """``old`` occurs exactly once in the file and becomes ``new``."""

    file: str
    old: str
    new: str

    def check(self, root: Path) -> str:
        """The file's text below ``root``. Raises RottenMutationError."""
        path = root / self.file
        if not path.is_file():
            raise RottenMutationError(f"{self.file} does not exist")
        text = path.read_text("utf-8")
        if (found := text.count(self.old)) != 1:
            raise RottenMutationError(f"{self.file} has this {found} times, not once:\n{self.old}")
        return text


@dataclass(frozen=True)
class Mutation:
    """``tests``: ids for pytest, quickest first; all of them pass without the changes, one has to fail with them."""

    name: str
    #: What is wrong with the code then.
    what: str
    changes: tuple[Change, ...]
    tests: tuple[str, ...]

    def check(self, root: Path) -> None:
        """Raises RottenMutationError unless all changes can be made below ``root``."""
        for change in self.changes:
            try:
                change.check(root)
            except RottenMutationError as error:
                raise RottenMutationError(f"mutation {self.name!r}: {error}") from None

    def apply(self, root: Path) -> dict[Path, str]:
        """Make the changes; what the files held before, for ``restore``. Raises RottenMutationError first."""
        self.check(root)
        before: dict[Path, str] = {}
        for change in self.changes:
            path = root / change.file
            text = path.read_text("utf-8")
            before.setdefault(path, text)
            path.write_text(text.replace(change.old, change.new), "utf-8")
        return before


def restore(before: dict[Path, str]) -> None:
    """Undo ``Mutation.apply``."""
    for path, text in before.items():
        path.write_text(text, "utf-8")
