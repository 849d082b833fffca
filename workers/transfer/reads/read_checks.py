"""Checks of a read before it is posted: all indices exist, and no block is written by two reads."""

from __future__ import annotations

from collections.abc import Collection

from baton_serve.core.protocol.steps import Read
from baton_serve.workers.rank_protocol.transfer_errors import TransferError


class ReadRefusedError(TransferError):
    """The read was refused before anything was posted."""


def check_read(read: Read, num_local: int, num_remote: int, busy: Collection[int]) -> None:
    """Check a read; ``busy`` are the local blocks of reads in flight. Raises ReadRefusedError."""
    local, remote = read.local_block_ids, read.remote_block_ids
    if len(local) != len(remote):
        raise ReadRefusedError(f"lengths differ: {len(remote)} remote blocks, {len(local)} local ones")
    _check_ids("local", local, num_local)
    _check_ids("remote", remote, num_remote)
    if len(set(local)) != len(local):
        raise ReadRefusedError("a local block is named twice")
    if not set(local).isdisjoint(busy):
        raise ReadRefusedError("a local block is under another read")
    if not 0 <= read.promise < 2**64:
        raise ReadRefusedError("the promise is not an unsigned 64-bit number")


def _check_ids(side: str, ids: list[int], num_blocks: int) -> None:
    if ids and not 0 <= min(ids) <= max(ids) < num_blocks:
        raise ReadRefusedError(f"a {side} block id is outside of 0 to {num_blocks - 1}")
