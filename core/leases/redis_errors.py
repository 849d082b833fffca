"""What redis-py can raise, mapped completely to the two errors of the lease store port."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from redis import exceptions

from core.leases.store import LeaseStoreError, LeaseStoreUnreachableError

if TYPE_CHECKING:
    from collections.abc import Iterator

#: No answer came: connection refused or lost, timeout, still loading its data, a bare socket error.
UNREACHABLE: tuple[type[Exception], ...] = (exceptions.ConnectionError, exceptions.TimeoutError, OSError)

#: An answer came and it was an error (OOM, WRONGTYPE, NOSCRIPT, READONLY, no permission), or made no sense.
REFUSED: tuple[type[Exception], ...] = (
    exceptions.RedisError,
    exceptions.RedisClusterException,
    exceptions.IncorrectPolicyType,
    exceptions.ChildDeadlockedError,
)


@contextmanager
def lease_store_errors() -> Iterator[None]:
    """Raise LeaseStoreError, and nothing of the library's, for whatever goes wrong with Redis inside the block."""
    try:
        yield
    except UNREACHABLE as error:
        raise LeaseStoreUnreachableError(f"Redis cannot be reached: {_one_line(error)}") from error
    except REFUSED as error:
        raise LeaseStoreError(f"Redis answered an error: {_one_line(error)}") from error


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
