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


def main() -> int:
    """Copy and compile; returns the compiler's status. Its output is shown only if it fails."""
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
        print(done.stdout, file=sys.stderr)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
