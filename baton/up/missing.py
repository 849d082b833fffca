"""A file with the workers that ``baton up`` has started and that do not serve. Its routers read it to answer
``/ready``.

A worker that has never served is not in the registry, so routers can know of it only through this file.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path


class MissingFile:
    """A JSON list of names at ``path``, as of the last ``note``."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._names: set[str] = set()
        self._write()

    @property
    def path(self) -> Path:
        """The path of the file."""
        return self._path

    def note(self, name: str, is_missing: bool) -> None:
        """Note whether a worker is missing."""
        if is_missing == (name in self._names):
            return
        self._names ^= {name}
        self._write()

    def remove(self) -> None:
        """Remove the file."""
        with contextlib.suppress(OSError):
            self._path.unlink()

    def _write(self) -> None:
        """Write the file whole or not at all. On a full disk it stays as it was, and ``/ready`` answers accordingly."""
        new = self._path.with_suffix(".new")
        with contextlib.suppress(OSError):
            new.write_text(json.dumps(sorted(self._names)))
            new.replace(self._path)
