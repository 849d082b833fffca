"""The interface to the other routers, and its implementation for a router that works alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from baton_serve.core.protocol.router import RouterRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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


class PeerRouters(Protocol):
    """The other routers on the same Redis. Implementations: ``NoPeers``, ``LinkedPeers`` (``links.py``)."""

    @property
    def router_id(self) -> str:
        """This router's own id."""

    @property
    def record(self) -> RouterRecord:
        """This router as the others see it."""

    @property
    def on_dead(self) -> list[Callable[[str], None]]:
        """Callbacks; a caller may add its own.

        Each is called on the event loop, once with the id of every router that has died, and must not raise.
        """

    def __iter__(self) -> Iterator[RouterRecord]:
        """The records of the other routers that are not known to be dead, by id."""

    async def gather(self, method: str, path: str, body: bytes = b"") -> list[PeerAnswer]:
        """Call all others at once on their internal ports; one answer each, in the order of their ids. Never raises."""

    async def ask(self, router_id: str, method: str, path: str, body: bytes = b"") -> PeerAnswer | None:
        """Call one of the others. Returns None if no router of that id is known."""


class Routers(NamedTuple):
    """This router, and the others. ``cleanup`` ends requests and leases that dead routers have left on workers."""

    peers: PeerRouters
    cleanup: Cleanup


class NoPeers:
    """For a router without Redis: it connects to no other router, and its record names no address."""

    def __init__(self, router_id: str) -> None:
        self.router_id = router_id
        self.record = RouterRecord(router_id=router_id, url="", internal_url="")
        self.on_dead: list[Callable[[str], None]] = []

    def __iter__(self) -> Iterator[RouterRecord]:
        return iter(())

    async def gather(self, method: str, path: str, body: bytes = b"") -> list[PeerAnswer]:
        """Returns no answers."""
        return []

    async def ask(self, router_id: str, method: str, path: str, body: bytes = b"") -> PeerAnswer | None:
        """Returns None: no other router is known."""
        return None
