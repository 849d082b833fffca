"""``make compiled``: a copy of this checkout in ``build/compiled`` whose hot modules are compiled, to test and measure.

Beside the sources here they would be what every other verb runs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
TARGET = ROOT / "build" / "compiled"
#: What is not copied: environments, what tools leave behind, and the copy itself.
_LEFT_OUT = shutil.ignore_patterns(
    ".git", ".venv*", "build", "dist", "__pycache__", "*.egg-info", ".*_cache", ".hypothesis"
)


class NotCompiledError(Exception):
    """The modules could not be compiled. The message is what the compiler said."""


def make_tree() -> Path:
    """Copy and compile, which takes about a minute; returns the copy. Raises NotCompiledError."""
    shutil.rmtree(TARGET, ignore_errors=True)
    shutil.copytree(ROOT, TARGET, ignore=_LEFT_OUT, symlinks=True)
    done = subprocess.run(
        [sys.executable, "setup.py", "-q", "build_ext", "--inplace", "--parallel", str(os.cpu_count() or 1)],
        cwd=TARGET,
        env={**os.environ, "BATON_COMPILE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise NotCompiledError(done.stdout or f"the compiler ended with status {done.returncode}")
    return TARGET


def main() -> int:
    """Make it; 1 if that fails."""
    try:
        make_tree()
    except NotCompiledError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
