"""What a router asks of P, on its internal port, when the lease store does not take a release: JSON, POST to ``PATH``.

History
-------
1: first version. A P that does not have it answers 404, and frees the blocks when its patience with Redis is over.
"""

from __future__ import annotations

from typing import Final

import msgspec

PATH: Final = "/internal/leases/release"
#: Most leases in one call.
MAX_LEASES: Final = 500
#: Most bytes of a call's body: ``MAX_LEASES`` ids of the longest kind (``core.leases.ids``), with room to spare.
MAX_BYTES: Final = 1 << 17


class Releases(msgspec.Struct, frozen=True):
    """Leases that no D will read."""

    lease_ids: list[str]


class Released(msgspec.Struct, frozen=True):
    """P's answer: the number of leases that it has ended. It held no others of them."""

    released: int
