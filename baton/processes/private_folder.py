"""The folder in which each ``baton up`` has what only its own user may use, under the port that it serves on."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path


class PrivateFolderError(Exception):
    """The folder cannot be used. The message is one line for a person."""


def private_folder(environ: Mapping[str, str]) -> Path:
    """The folder of this user."""
    runtime = environ.get("XDG_RUNTIME_DIR")
    return Path(runtime) / "baton" if runtime else Path(tempfile.gettempdir()) / f"baton-{os.getuid()}"


def make_private(folder: Path) -> None:
    """Make the folder.

    Raises PrivateFolderError if another user owns it or may enter it: that user could stop the workers.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise PrivateFolderError(f"cannot make {folder}: {error.strerror}") from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PrivateFolderError(f"{folder} is not a folder of this user alone (mode 0700)")


def remove(path: Path) -> None:
    """Remove a file, and its folder if that is empty then: another ``baton up`` may have something there."""
    path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        path.parent.rmdir()
