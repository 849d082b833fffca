"""The notifications that vLLM's prefill workers take from any NIXL agent, as bytes.

As in vLLM 0.32, ``NixlPullConnectorWorker._get_new_notifs``: a renewal is ``HB:`` and the request ids of leases with
commas between them; anything else is cut at its last colon into a request id and the number of decode ranks that will
say the same. A notification without a colon, with no number after it, or that is not UTF-8 ends the worker's process,
so that all of its requests fail. Therefore notifications are built nowhere but here, of ids that are checked.
"""

from __future__ import annotations

from collections.abc import Iterable

from baton_serve.core.protocol.id_syntax import MAX_ID_CHARS

RENEWAL_PREFIX = b"HB:"
#: Bytes of one renewal; more leases are renewed by several. 50 ids, which are less, were seen to take 0.25 ms.
MAX_NOTICE_BYTES = 4096
#: Ids whose release would look like a renewal, or like a registration of vLLM's push mode.
_PREFIXES = frozenset({"HB", "PUSH_REG"})


def check_lease_id(lease_id: str) -> str:
    """The id itself. Raises ValueError for an id that vLLM would read as something else."""
    if not (lease_id.isascii() and lease_id.isprintable()) or not 0 < len(lease_id) <= MAX_ID_CHARS:
        raise ValueError(f"the id of a lease is 1 to {MAX_ID_CHARS} printable ASCII characters")
    if "," in lease_id or ":" in lease_id or lease_id in _PREFIXES:
        raise ValueError("the id of a lease has neither comma nor colon, and is no word that begins a notification")
    return lease_id


def release(lease_id: str) -> bytes:
    """The notification that one rank of the prefill worker may free the blocks now: its only reader has finished.

    To be sent once: vLLM takes a second one for a read of blocks that it has freed. Raises ValueError.
    """
    return f"{check_lease_id(lease_id)}:1".encode("ascii")


def renewals(lease_ids: Iterable[str]) -> list[bytes]:
    """The notifications that renew these leases: as few as ``MAX_NOTICE_BYTES`` allows. Raises ValueError."""
    notices: list[bytes] = []
    batch = b""
    for name in (check_lease_id(lease_id).encode("ascii") for lease_id in lease_ids):
        if batch and len(RENEWAL_PREFIX) + len(batch) + 1 + len(name) > MAX_NOTICE_BYTES:
            notices.append(RENEWAL_PREFIX + batch)
            batch = b""
        batch = batch + b"," + name if batch else name
    return [*notices, RENEWAL_PREFIX + batch] if batch else notices
