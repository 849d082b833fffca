"""``python -m tests.faults.mutations [--only NAME]``: do the tests notice what is known to be wrong?

A copy of the tree is spoilt in one way at a time, and the tests that are named for it have to fail. Exit status: 0 all
were noticed, 1 one survived, 2 nothing can be said (a text is not in the code any more, a test fails without changes).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.faults.mutations.copy import Copy, CopyError
from tests.faults.mutations.mutation import Mutation, RottenMutationError, restore
from tests.faults.mutations.table import MUTATIONS


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.mutations", description=__doc__)
    names = [mutation.name for mutation in MUTATIONS]
    parser.add_argument("--only", action="append", choices=names, metavar="NAME", help=f"one of {', '.join(names)}")
    only = parser.parse_args(arguments).only
    chosen = [mutation for mutation in MUTATIONS if not only or mutation.name in only]
    try:
        with tempfile.TemporaryDirectory(prefix="baton-mutations-") as folder:
            return 1 if _try_all(Copy(Path(folder).resolve()), chosen) else 0
    except (CopyError, RottenMutationError) as error:
        print(error, file=sys.stderr)
        return 2


def _try_all(copy: Copy, mutations: Sequence[Mutation]) -> int:
    """How many survive."""
    began = time.monotonic()
    for mutation in mutations:
        mutation.check(copy.root)
    tests = list(dict.fromkeys(test for mutation in mutations for test in mutation.tests))
    unchanged = copy.test(tests)
    if unchanged.first:
        raise CopyError(f"{unchanged.first} fails without any mutation:\n{unchanged.output}")
    print(f"without a mutation {len(tests)} tests pass ({time.monotonic() - began:.0f} s)", flush=True)
    table = Table("mutation", "file", "caught by", "seconds")
    num_survivors = 0
    for mutation in mutations:
        caught_by, seconds = _try(copy, mutation)
        num_survivors += not caught_by
        print(f"{mutation.name}: {caught_by or 'SURVIVED'} ({seconds:.1f} s)", flush=True)
        files = dict.fromkeys(change.file for change in mutation.changes)
        table.add_row(mutation.name, "\n".join(files), caught_by or f"NOBODY: {mutation.what}", f"{seconds:.1f}")
    Console(width=None if sys.stdout.isatty() else 160).print(table)
    print(f"{len(mutations)} mutations, {num_survivors} survived, {time.monotonic() - began:.0f} s")
    return num_survivors


def _try(copy: Copy, mutation: Mutation) -> tuple[str, float]:
    """The first test that noticed, empty if none did, and the time it took."""
    began = time.monotonic()
    before = mutation.apply(copy.root)
    try:
        verdict = copy.test(mutation.tests)
    finally:
        restore(before)
    path, _, test = verdict.first.partition("::")
    return f"{Path(path).name}::{test}" if verdict.first else "", time.monotonic() - began


if __name__ == "__main__":
    sys.exit(main())
