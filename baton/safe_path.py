"""Keeps ``baton`` from importing files of the current directory, as ``core/process/interpreter.py`` does for child
processes.

``python -m baton_serve`` has the current directory first in ``sys.path``, and so has any Python where ``PYTHONPATH``
has an empty entry. This module imports only what Python itself has imported already: even ``pathlib`` might be a file
in that directory.
"""

# ruff: noqa: PTH109, PTH120

import os
import sys


def forget_current_directory() -> None:
    """Remove the current directory from ``sys.path``, unless this package is in it or ``PYTHONPATH`` names it."""
    try:
        here = os.getcwd()
    except OSError:  # it was removed
        here = ""
    root = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
    if here != root and (not here or here not in os.environ.get("PYTHONPATH", "").split(os.pathsep)):
        sys.path[:] = [entry for entry in sys.path if entry not in ("", here)]
