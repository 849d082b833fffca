"""``LinkedPeers``: the other routers on the same Redis, each with a link whose end shows that it may have died."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from baton_serve.core.net.client.http_client import HttpClient
from baton_serve.core.net.tls import InternalTls
from baton_serve.core.process.task_end import end_task
from baton_serve.core.protocol.router import RouterRecord
from baton_serve.router.peers.calls import CALL_TIMEOUT_S, call
from baton_serve.router.peers.failure_detector import DetectorEvent, DetectorState, PeerRouter
from baton_serve.router.peers.link import LinkRefused, NoLink, open_link, until_first
from baton_serve.router.peers.port import PeerAnswer, PeerRouters

log = logging.getLogger("baton.router")

#: Most seconds to wait for a link: connection, proof and headers of the answer.
LINK_TIMEOUT_S = 2.0
#: Seconds until a router that cannot be reached is tried again; doubled up to the maximum.
FIRST_RETRY_S = 0.02
MAX_RETRY_S = 2.0


@dataclass(eq=False)
class _Kept:
    """One other router, and the task that keeps the link to it."""

    peer: PeerRouter
    #: Whether it has proven that it knows the internal token, and has been reachable since.
    proven: bool = False
    #: Set once a link was tried; ``why`` says why there is none.
    tried: asyncio.Event = field(default_factory=asyncio.Event)
    why: str = ""
    vanished: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None

    def failed(self, why: str) -> None:
        """Note that there is no link. Whatever listens there must prove again that it knows the token."""
        self.proven, self.why = False, why
        self.tried.set()


class LinkedPeers(PeerRouters):
    """The other routers that a registry lists: ``apply`` takes the lists; ``close`` at the end."""

    def __init__(
        self,
        record: RouterRecord,
        upstream: HttpClient,
        headers: Sequence[tuple[str, str]],
        key: bytes | None = None,
        tls: InternalTls | None = None,
    ) -> None:
        """``record`` is this router's own. ``headers`` carry the internal token; only routers are sent them that have
        proven by ``key`` that they know the token.
        """
        super().__init__(record)
        #: Set once the registry's first list has come.
        self.met = asyncio.Event()
        self._upstream = upstream
        self._headers = headers
        self._key = key
        self._tls = tls
        self._kept: dict[str, _Kept] = {}

    def __repr__(self) -> str:
        return f"<LinkedPeers of {self.router_id}: {[kept.peer for kept in self._kept.values()]}>"

    def __iter__(self) -> Iterator[RouterRecord]:
        return iter([peer.record for peer in self.peers()])

    def peers(self) -> list[PeerRouter]:
        """All other routers except the dead ones, by id."""
        return [kept.peer for _, kept in sorted(self._kept.items()) if not kept.peer.dead]

    async def gather(self, method: str, path: str, body: bytes = b"") -> list[PeerAnswer]:
        """See the port."""
        kept = (self._kept[peer.record.router_id] for peer in self.peers())
        return list(await asyncio.gather(*(self._ask(one, method, path, body) for one in kept)))

    async def ask(self, router_id: str, method: str, path: str, body: bytes = b"") -> PeerAnswer | None:
        """See the port."""
        kept = self._kept.get(router_id)
        if kept is None or kept.peer.dead:
            return None
        return await self._ask(kept, method, path, body)

    def apply(self, entries: Iterable[RouterRecord]) -> None:
        """Take over the registry's list: open links to new routers, and check whether missing ones are alive."""
        present = {record.router_id: record for record in entries if record.router_id != self.router_id}
        for router_id, record in present.items():
            if router_id not in self._kept:
                self._meet(record)
            self._kept[router_id].peer.seen()
        for router_id in self._kept.keys() - present.keys():
            self._miss(self._kept[router_id])
        self.met.set()

    async def _ask(self, kept: _Kept, method: str, path: str, body: bytes) -> PeerAnswer:
        """Call one router; if it is new, wait first for its proof that it knows the token."""
        record = kept.peer.record
        if self._key is not None and not kept.proven:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CALL_TIMEOUT_S):
                    await kept.tried.wait()
            if not kept.proven:
                return PeerAnswer(record.router_id, error=kept.why or "it did not answer in time")
        return await call(self._upstream, self._headers, record, method, path, body)

    async def close(self) -> None:
        """Close all links. No router is declared dead any more."""
        await asyncio.gather(*(end_task(kept.task) for kept in self._kept.values() if kept.task is not None))

    def _meet(self, record: RouterRecord) -> None:
        loop = asyncio.get_running_loop()
        kept = self._kept[record.router_id] = _Kept(PeerRouter(record, loop.time()))
        kept.task = loop.create_task(self._keep(kept), name=f"link to {record.router_id}")

    def _miss(self, kept: _Kept) -> None:
        """Note that the registry no longer lists a router: once, although later lists lack it as well."""
        if kept.peer.announced:
            self._note(kept.peer, DetectorEvent.VANISHED)
            kept.vanished.set()
        if kept.peer.dead:
            self._forget(kept)

    def _forget(self, kept: _Kept) -> None:
        """Forget a router that is dead and not in the registry. If it comes back, it counts as a new one."""
        self._kept.pop(kept.peer.record.router_id, None)
        if kept.task is not asyncio.current_task() and kept.task is not None:
            kept.task.cancel()

    def _note(self, peer: PeerRouter, event: DetectorEvent, why: str = "") -> None:
        before, router_id = peer.state, peer.record.router_id
        state = peer.on(event, asyncio.get_running_loop().time())
        if state is not before:
            # A router that was never reached is declared dead when its registry entry expires, so its address must be
            # corrected.
            level = logging.WARNING if state is DetectorState.UNMET else logging.INFO
            said = f"{event} ({why})" if why else event
            log.log(level, "router %s at %s: %s, so it is %s", router_id, peer.record.internal_url, said, state)
        if peer.dead and before is not state:
            for listener in self.on_dead:
                listener(router_id)

    async def _keep(self, kept: _Kept) -> None:
        """Hold a link to a router as long as it is alive."""
        peer, retry_s = kept.peer, FIRST_RETRY_S
        while not peer.dead:
            if await self._linked(kept):
                retry_s = FIRST_RETRY_S
            elif not peer.dead:
                await _until_vanished(kept, asyncio.sleep(retry_s))
                retry_s = min(2 * retry_s, MAX_RETRY_S)
        if not peer.announced:
            self._forget(kept)
        else:
            await self._doubt(kept)

    async def _doubt(self, kept: _Kept) -> None:
        """Keep trying a dead router that is still announced; if it answers after all, it counts as a new one.

        A device between the two may have refused the connection. Without this, this router would never connect again.
        """
        record, link = kept.peer.record, None
        while link is None:
            await asyncio.sleep(MAX_RETRY_S)
            with contextlib.suppress(LinkRefused, NoLink):
                link = await open_link(record, self._headers, LINK_TIMEOUT_S, self._key, self._tls)
        link.close()
        log.warning("router %s answers although nobody listened there: it counts as a new one", record.router_id)
        self._forget(kept)
        self._meet(record)

    async def _linked(self, kept: _Kept) -> bool:
        """Open a link, and keep it until it breaks or the router leaves the registry. False: it could not be opened."""
        peer = kept.peer
        try:
            link = await open_link(peer.record, self._headers, LINK_TIMEOUT_S, self._key, self._tls)
        except LinkRefused:
            kept.failed("it does not accept connections")
            self._note(peer, DetectorEvent.REFUSED)
            return False
        except NoLink as error:
            kept.failed(str(error))
            self._note(peer, DetectorEvent.NO_ANSWER, kept.why)
            return False
        kept.proven = True
        kept.tried.set()
        with contextlib.closing(link):
            kept.vanished.clear()  # the router has answered since
            self._note(peer, DetectorEvent.OPENED)
            await _until_vanished(kept, link.ended())
        if peer.state is DetectorState.LINKED:
            self._note(peer, DetectorEvent.BROKE)
        return True


async def _until_vanished(kept: _Kept, other: Coroutine[Any, Any, None]) -> None:
    """Wait until ``other`` is over, or that router's registry entry has expired."""
    await until_first(other, kept.vanished.wait())
    kept.vanished.clear()
