"""What a router announces to the other routers about itself.

JSON, in the registry. Routers of neighbouring versions read each other: unknown fields are skipped, and a field that is
added has a default.

History
-------
1: first version. The id of a request began with its router's.
2: the id of a request ends with its router's, so that its beginning differs from all others. A router of version 1 is
   given up as any other one, but its leases have to run out: workers do not find them by its id any more.
   Where there is an internal token, records are signed and numbered, as in ``worker``; then routers of version 2 do not
   see routers of version 1.
"""

from __future__ import annotations

import msgspec

from baton_serve.core.protocol.id_syntax import Count, Text

#: Seconds that a worker refuses requests of a router after it was notified that the router is dead. Requests still in a
#: buffer of the dead router arrive within milliseconds, or with a retransmission. A router that lives after all retries
#: for longer.
REFUSE_GONE_S = 2.0
#: Seconds that other routers try to notify a worker, after they gave up the router: a fraction of a lease.
TELL_GONE_S = 1.5


class RouterRecord(msgspec.Struct, kw_only=True, frozen=True):
    """A router's record. ``router_id`` is random at every start of a process."""

    router_id: str
    #: Base URL of the port that serves ``/v1`` and ``/admin``, without a trailing slash.
    url: str
    #: Base URL of the port for other routers, guarded by the internal token.
    internal_url: str
    #: The same for all routers that share one public port; empty: the router shares its port with no other.
    group: Text = ""
    #: When its process started, in Unix seconds of its own clock, for people. 0: unknown.
    started_s: Count = 0
