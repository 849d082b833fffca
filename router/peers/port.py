"""The interface to the other routers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from baton_serve.core.protocol.router import RouterRecord
from baton_serve.router.peers.cleanup import Cleanup


@dataclass(frozen=True, slots=True)
class PeerAnswer:
    """The answer of one router. ``error``: one line on why there is none, with ``status`` 0; else empty."""

    router_id: str
    status: int = 0
    body: bytes = b""
    error: str = ""

    @property
    def ok(self) -> bool:
        """Whether the router did what was asked."""
        return self.status == 200


class PeerRouters:
    """The other routers on the same Redis: none, for a router that works alone; else ``LinkedPeers`` (``links.py``)."""

    def __init__(self, record: RouterRecord) -> None:
        """``record``: this router as the others see it. A router that works alone has one without an address."""
        self.record = record
        self.router_id = record.router_id
        #: Callbacks; a caller may add its own. Each is called on the event loop, once with the id of every router that
        #: has died, and must not raise.
        self.on_dead: list[Callable[[str], None]] = []

    def __iter__(self) -> Iterator[RouterRecord]:
        """The records of the other routers that are not known to be dead, by id."""
        return iter(())

    async def gather(self, method: str, path: str, body: bytes = b"") -> list[PeerAnswer]:
        """Call all others at once on their internal ports; one answer each, in the order of their ids. Never raises."""
        return []

    async def ask(self, router_id: str, method: str, path: str, body: bytes = b"") -> PeerAnswer | None:
        """Call one of the others. Returns None if no router of that id is known."""
        return None


class Routers(NamedTuple):
    """This router, and the others. ``cleanup`` ends requests and leases that dead routers have left on workers."""

    peers: PeerRouters
    cleanup: Cleanup
