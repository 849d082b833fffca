"""The version of Baton."""

from __future__ import annotations

import functools
from importlib import metadata, util


@functools.cache
def version() -> str:
    """The version of the package; ``unknown`` where the package was copied and not installed."""
    try:
        return metadata.version("baton-serve")
    except metadata.PackageNotFoundError:
        return "unknown"


def is_compiled() -> bool:
    """Whether the hot modules of this router are compiled."""
    found = util.find_spec("baton_serve.core.net.deadlines")
    return found is not None and not str(found.origin).endswith(".py")
