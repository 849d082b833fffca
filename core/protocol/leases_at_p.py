"""What a router asks of P itself about leases, on its internal port, instead of the lease store: JSON, by POST.

``RELEASE_PATH``: end these leases, because the store does not take their release. ``HELD_PATH``: which of these are
there, because P is missing from the registry.

History
-------
1: first version, with ``RELEASE_PATH`` alone. A P that does not have it answers 404, and frees the blocks when its
   patience with Redis is over.
2: ``HELD_PATH``. A P that answers 404 counts as one that holds nothing.
"""

from __future__ import annotations

from typing import Final

import msgspec

RELEASE_PATH: Final = "/internal/leases/release"
HELD_PATH: Final = "/internal/leases/held"
#: Most leases in one call.
MAX_LEASES: Final = 500
#: Most bytes of a call's body: ``MAX_LEASES`` ids of the longest kind (``core.leases.ids``), with room to spare.
MAX_BYTES: Final = 1 << 17


class LeaseIds(msgspec.Struct, frozen=True):
    """The leases that a call is about."""

    lease_ids: list[str]


class Released(msgspec.Struct, frozen=True):
    """P's answer to a release: the number of leases that it has ended. P held no other of the leases."""

    released: int


class Held(msgspec.Struct, frozen=True):
    """P's answer to the question which of some leases it holds: the leases whose blocks it keeps."""

    held: list[str]
