"""What uvloop adds to the ways in which a connection to Redis ends."""

from __future__ import annotations

import pytest

from baton_serve.core.registry.redis_registry import _registry_errors
from baton_serve.core.registry.store import RegistryError


def test_a_write_to_a_connection_just_closed_is_a_registry_error() -> None:
    """As seen when Redis refuses a connection while a pipeline is being written to it; any other end kills a task."""
    with pytest.raises(RegistryError, match="the handler is closed"), _registry_errors():
        raise RuntimeError("unable to perform operation on <TCPTransport closed=True>; the handler is closed")
