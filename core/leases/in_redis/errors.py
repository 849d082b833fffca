"""Every exception that redis-py can raise, mapped to one of the two errors of the lease store port."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from redis import exceptions

from baton_serve.core.leases.store import LeaseStoreError, LeaseStoreUnreachableError

if TYPE_CHECKING:
    from collections.abc import Iterator

#: No answer came: connection refused or lost, timeout, Redis still loading its data, a bare socket error.
UNREACHABLE: tuple[type[Exception], ...] = (exceptions.ConnectionError, exceptions.TimeoutError, OSError)

#: The answer was an error (OOM, WRONGTYPE, NOSCRIPT, READONLY, no permission), or could not be parsed.
REFUSED: tuple[type[Exception], ...] = (
    exceptions.RedisError,
    exceptions.RedisClusterException,
    exceptions.IncorrectPolicyType,
    exceptions.ChildDeadlockedError,
)


@contextmanager
def lease_store_errors() -> Iterator[None]:
    """Raise LeaseStoreError instead of any exception of redis-py inside the block."""
    try:
        yield
    except UNREACHABLE + REFUSED as error:
        raise as_lease_store_error(error) from error


def as_lease_store_error(error: Exception) -> LeaseStoreError:
    """The error of the port that stands for an error of redis-py."""
    if isinstance(error, UNREACHABLE):
        return LeaseStoreUnreachableError(f"Redis cannot be reached: {_one_line(error)}")
    return LeaseStoreError(f"Redis answered an error: {_one_line(error)}")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
