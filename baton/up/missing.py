"""Which workers ``baton up`` is without: a file that its routers read when they are asked for ``/ready``.

A worker that never came to serve has told no router of itself.
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
        """Where it is."""
        return self._path

    def note(self, name: str, is_missing: bool) -> None:
        """A worker serves, has left, or has died."""
        if is_missing == (name in self._names):
            return
        self._names ^= {name}
        self._write()

    def remove(self) -> None:
        """Nobody reads it any more."""
        with contextlib.suppress(OSError):
            self._path.unlink()

    def _write(self) -> None:
        """Whole or not at all. A full disk is no reason to stop: then ``/ready`` tells what was true before."""
        new = self._path.with_suffix(".new")
        with contextlib.suppress(OSError):
            new.write_text(json.dumps(sorted(self._names)))
            new.replace(self._path)
