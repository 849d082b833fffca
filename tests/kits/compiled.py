"""Whether the tests run over modules that are compiled (``make test-compiled``)."""

from __future__ import annotations

from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec

SUFFIXES = tuple(EXTENSION_SUFFIXES)


def is_compiled(module: str) -> bool:
    """Whether importing the module loads an extension."""
    spec = find_spec(module)
    assert spec is not None and spec.origin is not None, module
    return spec.origin.endswith(SUFFIXES)
