"""The leases that hold blocks, by lease id and by request id."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from baton_serve.core.protocol.handoff import lease_of_reader
from baton_serve.workers.engine.errors import LedgerError


@dataclass(frozen=True, slots=True)
class Grant:
    """What a lease was granted for. ``token_ids``: the tokens in its ``blocks``; ``adapter`` computed them."""

    request_id: str = ""
    token_ids: list[int] = field(default_factory=list)
    blocks: Sequence[int] = ()
    #: How many choices read the blocks, and the numbers of those that have.
    num_readers: int = 1
    have_read: set[int] = field(default_factory=set)
    adapter: str = ""


class LeaseIndex:
    """The leases that hold blocks. Every new request looks up the leases of its id, so that lookup is O(1)."""

    def __init__(self) -> None:
        self._by_lease: dict[str, Grant] = {}
        #: Lease ids by request id, oldest first. No request has an empty dict.
        self._by_request: dict[str, dict[str, None]] = {}

    def __contains__(self, lease_id: str) -> bool:
        return lease_id in self._by_lease

    def __len__(self) -> int:
        return len(self._by_lease)

    def blocks(self) -> list[int]:
        """The blocks of all leases; one that several leases hold is there several times."""
        return [block for grant in self._by_lease.values() for block in grant.blocks]

    def add(self, lease_id: str, grant: Grant) -> None:
        """List a lease that holds blocks. Raises LedgerError if it is listed."""
        if lease_id in self._by_lease:
            raise LedgerError(f"lease {lease_id} granted twice")
        self._by_lease[lease_id] = grant
        self._by_request.setdefault(grant.request_id, {})[lease_id] = None

    def remove(self, lease_id: str) -> Grant | None:
        """Forget a lease that has ended; returns what it was granted for, None if it is not listed."""
        grant = self._by_lease.pop(lease_id, None)
        if grant is None:
            return None
        same_request = self._by_request[grant.request_id]
        del same_request[lease_id]
        if not same_request:
            del self._by_request[grant.request_id]
        return grant

    def get(self, lease_id: str) -> Grant | None:
        """What the lease was granted for; None if it holds no blocks."""
        return self._by_lease.get(lease_id)

    def note_read(self, name: str) -> str | None:
        """Note a read, by what the reader calls the lease; returns the lease that is over by it, None if others are to
        read.

        The same reader counts once, as it may read again on another worker. A lease that is not listed counts as over.
        """
        lease_id, reader = lease_of_reader(name)
        grant = self._by_lease.get(lease_id)
        if grant is None or reader >= grant.num_readers:
            return name
        grant.have_read.add(reader)
        return lease_id if len(grant.have_read) == grant.num_readers else None

    def has_readers(self, name: str) -> bool:
        """Whether the lease, by its id or by what a reader calls it, is for several readers."""
        grant = self._by_lease.get(lease_of_reader(name)[0])
        return grant is not None and grant.num_readers > 1

    def of(self, request_id: str) -> list[str]:
        """The leases of one request, oldest first."""
        return list(self._by_request.get(request_id, ()))

    def ending_with(self, suffix: str) -> list[str]:
        """The leases of all requests whose id ends with ``suffix``. O(requests with leases)."""
        return [
            lease_id
            for request_id, lease_ids in self._by_request.items()
            if request_id.endswith(suffix)
            for lease_id in lease_ids
        ]

    def check(self) -> None:
        """Check that both indexes agree. O(leases). Raises LedgerError."""
        found = {lease_id: request_id for request_id, ids in self._by_request.items() for lease_id in ids}
        if found != {lease_id: grant.request_id for lease_id, grant in self._by_lease.items()}:
            raise LedgerError("a lease is listed under another request than it was granted for")
        if not all(self._by_request.values()):
            raise LedgerError("a request without leases is listed")
