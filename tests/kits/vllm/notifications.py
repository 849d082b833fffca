"""Reads notifications by vLLM's rules, exceptions included. Not a test."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Renewed:
    """The leases that a notification renews."""

    ids: list[str]


@dataclass(frozen=True)
class Read:
    """One of ``num_readers`` ranks has read what a lease holds."""

    lease_id: str
    num_readers: int


def read_notification(payload: bytes) -> Renewed | Read:
    """As ``_get_new_notifs`` and ``_handle_heartbeat`` in vLLM 0.32. Raises ValueError where these end the worker."""
    text = payload.decode("utf-8")
    if text.startswith("HB:"):
        return Renewed(text[3:].split(","))
    lease_id, num_readers = text.rsplit(":", 1)
    return Read(lease_id, int(num_readers))
