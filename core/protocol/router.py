"""What a router announces to the other routers about itself, and the form of request ids, which name their router.

JSON, in the registry. Routers of neighbouring versions read each other: unknown fields are skipped, and a field that is
added has a default.

History
-------
1: first version. The id of a request began with its router's.
2: it ends with its router's, so that its beginning differs from all others. A router of version 1 is given up as any
   other one, but its leases have to run out: workers do not find them by its id any more.
   Where there is an internal token, records are signed and numbered, as in ``worker``; then routers of version 2 do not
   see those of version 1.
"""

from __future__ import annotations

import os
import re
import secrets

import msgspec

#: Hex digits of a router id, and the number of digits that a request id has in addition.
ROUTER_ID_CHARS = 12
_REST_CHARS = 20
_REQUEST_ID = re.compile(f"[0-9a-f]{{{ROUTER_ID_CHARS + _REST_CHARS}}}")
#: Seconds that a worker refuses requests of a router after it was notified that the router is dead. Requests still in a
#: buffer of the dead router arrive within milliseconds, or with a retransmission. A router that lives after all retries
#: for longer.
REFUSE_GONE_S = 2.0
#: Seconds that other routers try to notify a worker, after they gave up the router: a fraction of a lease.
TELL_GONE_S = 1.5


class RouterRecord(msgspec.Struct, kw_only=True, frozen=True):
    """Who a router is. ``router_id`` is random at every start of a process."""

    router_id: str
    #: Base URL of the port that serves ``/v1`` and ``/admin``, without a trailing slash.
    url: str
    #: Base URL of the port for other routers, guarded by the internal token.
    internal_url: str
    #: The same for all routers that share one public port; empty: the router shares its port with no other.
    group: str = ""
    #: When its process started, in Unix seconds of its own clock, for people. 0: unknown.
    started_s: int = 0


def new_router_id() -> str:
    """Twelve random hex digits."""
    return secrets.token_hex(ROUTER_ID_CHARS // 2)


def new_request_id(router_id: str) -> str:
    """A new request id: random digits first (``core/protocol/ids.py``), then the id of its router."""
    return os.urandom(_REST_CHARS // 2).hex() + router_id


def is_request_id(text: str) -> bool:
    """Whether it has the form of ``new_request_id``, which other ids are unlikely to have."""
    return _REQUEST_ID.fullmatch(text) is not None


def owner_of(request_id: str) -> str:
    """The id of the request's router. For a text that is no request id, the result is no router's id."""
    return request_id[-ROUTER_ID_CHARS:]
