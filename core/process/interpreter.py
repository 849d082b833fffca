"""How one process of Baton starts another: with Baton's and the installed packages, but never with files of the current
directory.

``python -m`` looks in the current directory first. If a user starts ``baton up`` in a directory with a ``router.py`` or
a folder ``workers``, that would run in place of Baton's, with the internal token in its environment.
"""

from __future__ import annotations

import os
import site
import sys
from collections.abc import Mapping
from pathlib import Path

#: The folder with Baton's package: a checkout, or the folder into which pip installs.
ROOT = Path(__file__).parents[3]
VARIABLE = "PYTHONPATH"
#: The same as ``-P``, for interpreters that a child starts itself.
SAFE_PATH = {"PYTHONSAFEPATH": "1"}


def python(module: str) -> tuple[str, ...]:
    """A command line that runs a module with this same interpreter, to be started ``with_import_path``."""
    return (sys.executable, "-P", "-m", module)


def with_import_path(environ: Mapping[str, str]) -> dict[str, str]:
    """An environment in which a child, and interpreters that it starts, find Baton's packages where this process found
    them, and nothing in the current directory. An empty entry of ``PYTHONPATH`` (as in ``PYTHONPATH=$PYTHONPATH:/x``)
    means the current directory, and a relative entry is inside it.
    """
    entries = [entry for entry in environ.get(VARIABLE, "").split(os.pathsep) if Path(entry).is_absolute()]
    # The folders into which pip installs are searched anyway, but here they would come before the standard library.
    if str(ROOT) not in (*site.getsitepackages(), site.getusersitepackages()):
        entries = [str(ROOT), *(entry for entry in entries if Path(entry) != ROOT)]
    result = {**{key: value for key, value in environ.items() if key != VARIABLE}, **SAFE_PATH}
    return {**result, VARIABLE: os.pathsep.join(entries)} if entries else result
