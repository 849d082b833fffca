"""What a router tells the others: who it is. And what the id of a request says: which router has it.

JSON, in the registry. Routers of neighbouring versions read each other: unknown fields are skipped, and a field that is
added has a default.

History
-------
1: first version. The id of a request began with its router's.
2: it ends with its router's, so that its beginning tells it from all others. A router of version 1 is given up as any
   other one, but its leases have to run out: workers do not find them by its id any more.
   Where there is an internal token, records are signed and numbered, as in ``worker``; then routers of version 2 do not
   see those of version 1.
"""

from __future__ import annotations

import os
import re
import secrets

import msgspec

#: Hex digits of a router id, and how many more make the id of a request.
ROUTER_ID_CHARS = 12
_REST_CHARS = 20
_REQUEST_ID = re.compile(f"[0-9a-f]{{{ROUTER_ID_CHARS + _REST_CHARS}}}")
#: How long a worker takes nothing of a router that was given up, seconds from when it was told. What a dead one still
#: had in some buffer arrives within milliseconds, or with a retransmission. One that lives after all tries again for
#: longer than that.
REFUSE_GONE_S = 2.0
#: How long the others try to tell a worker, seconds from when they gave it up: a fraction of a lease.
TELL_GONE_S = 1.5


class RouterRecord(msgspec.Struct, kw_only=True, frozen=True):
    """Who a router is. ``router_id`` is random at every start of a process."""

    router_id: str
    #: Base URL of the port that serves ``/v1`` and ``/admin``, without a trailing slash.
    url: str
    #: Base URL of the port for other routers, guarded by the internal token.
    internal_url: str
    #: Routers that share one public port have the same; empty: it shares its port with nobody.
    group: str = ""
    #: When its process started, Unix time in seconds, by its own clock: for people. 0: not told.
    started_s: int = 0


def new_router_id() -> str:
    """Twelve random hex digits."""
    return secrets.token_hex(ROUTER_ID_CHARS // 2)


def new_request_id(router_id: str) -> str:
    """An id that no other request has. It begins at random (``core/protocol/ids.py``) and ends with its router's."""
    return os.urandom(_REST_CHARS // 2).hex() + router_id


def is_request_id(text: str) -> bool:
    """It has the form that ``new_request_id`` gives, and nothing else that is likely has."""
    return _REQUEST_ID.fullmatch(text) is not None


def owner_of(request_id: str) -> str:
    """The id of the router whose request it is; of a router that never was, for what is no request id."""
    return request_id[-ROUTER_ID_CHARS:]
