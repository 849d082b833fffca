"""Which workers are missing, from ``baton up``, which starts them: the registry has none that never registered."""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec

log = logging.getLogger("baton.router")


class MissingWorkers:
    """Reads a file that the parent of this process replaces at each change. No path: no worker is ever missing."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._version: tuple[int, ...] = ()
        self._names: list[str] | None = None
        self._is_told = False

    def names(self) -> list[str] | None:
        """The names from the last time that the file could be read; None: it never could be read."""
        if self._path is None:
            return []
        try:
            self._read(self._path)
        except (OSError, msgspec.DecodeError) as error:
            if not self._is_told:
                log.warning("which workers are missing is not known: %s: %s", self._path, error)
            self._is_told = True
        return self._names

    def _read(self, path: Path) -> None:
        """Read the file only if it has changed, since clients may ask as often as they like."""
        found = path.stat()
        version = (found.st_mtime_ns, found.st_ino, found.st_size)
        if version != self._version:
            self._version = version
            self._names = msgspec.json.decode(path.read_bytes(), type=list[str])
