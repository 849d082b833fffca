"""Which workers are missing, as far as whoever started this router knows: of those that never came, the registry knows
nothing.
"""

from __future__ import annotations

from pathlib import Path

import msgspec


def missing_workers(path: Path | None) -> list[str]:
    """The names in the file; none where there is no such file."""
    try:
        return [] if path is None else msgspec.json.decode(path.read_bytes(), type=list[str])
    except (OSError, msgspec.DecodeError):
        return []
