"""A copy of the tree to be spoilt: tracked files as they are now, and pytest on it, which never sees the original."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[3]
FOLDERS = ("core", "router", "workers", "baton")
#: Longest run of one mutation's tests, and of one test, seconds. A test that hangs has noticed, but says so late.
RUN_S, TEST_S = 240, 60
_NOT_PASSED = re.compile(r"^(?:FAILED|ERROR) (tests/.+?)(?: - .*)?$", re.MULTILINE)


class CopyError(Exception):
    """Nothing that the copy says could be believed."""


@dataclass(frozen=True)
class Verdict:
    """What pytest said. ``first``: the first test that did not pass; empty if all did."""

    first: str
    output: str


class Copy:
    """The tree below ``root``, an empty folder. Raises CopyError if its code is not what is imported from it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True)
        for name in filter(None, listed.stdout.split("\0")):
            if (ROOT / name).exists():  # one that was removed and is still tracked is not there
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, root / name, follow_symlinks=False)
        # First in the path of every process, wherever it runs: the editable install names the original. No bytecode,
        # since a file that is changed within a second and keeps its size would pass for the one compiled before.
        self._environ = os.environ | {"PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
        self._check_imports()

    def _check_imports(self) -> None:
        show = (
            f"from baton_serve import {', '.join(FOLDERS)}\nfor one in ({', '.join(FOLDERS)}): print(one.__path__[0])"
        )
        found = subprocess.run(
            [sys.executable, "-c", show], cwd="/", env=self._environ, check=True, capture_output=True, text=True
        )
        foreign = [line for line in found.stdout.splitlines() if Path(line).parent != self.root / "baton_serve"]
        if foreign:
            raise CopyError(f"not the copy in {self.root}, but {', '.join(foreign)} is imported")

    def test(self, tests: Iterable[str]) -> Verdict:
        """Run them up to the first that does not pass. Raises CopyError when pytest could not even try."""
        options = ["-x", "-rfE", "--tb=line", "--timeout", str(TEST_S), "-p", "no:cacheprovider"]
        command = [sys.executable, "-m", "pytest", *options, *tests]
        try:
            ran = subprocess.run(
                command, cwd=self.root, env=self._environ, capture_output=True, text=True, timeout=RUN_S, check=False
            )
        except subprocess.TimeoutExpired:
            raise CopyError(f"no end after {RUN_S} s: {' '.join(tests)}") from None
        output = ran.stdout + ran.stderr
        first = _NOT_PASSED.search(output)
        if ran.returncode not in (0, 1) or (ran.returncode == 1) != (first is not None):
            raise CopyError(f"pytest ended with status {ran.returncode}:\n{output}")
        return Verdict(first[1] if first else "", output)
