"""The version of Baton."""

from __future__ import annotations

import functools
from importlib import metadata


@functools.cache
def version() -> str:
    """The version of the package; ``unknown`` where the package was copied and not installed."""
    try:
        return metadata.version("baton-serve")
    except metadata.PackageNotFoundError:
        return "unknown"
