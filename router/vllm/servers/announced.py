"""vLLM servers that announce themselves in the registry: each is a worker, and watched, as long as it is announced.

An announcement says that there is a server, and where. The watcher asks it all else, as it asks a server that was added
by its address: a server announces itself before its port is open, and its announcement does not count the requests that
wait in front of its engine. Of an announced load only two things are taken: the number of leases, which no page of the
server shows, and, where the server has not answered for ``LOAD_TTL_S``, a load that changes, since its engine may well
be less busy than its HTTP port.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import NamedTuple

from baton_serve.core.process.log_pace import OncePerMinute
from baton_serve.core.protocol.vllm_server import VllmRecord, VllmStatus
from baton_serve.core.protocol.worker import WorkerLoad
from baton_serve.router.pool import Worker, WorkerPool
from baton_serve.router.vllm.kind import VLLM

log = logging.getLogger("baton.router")


class _Added(NamedTuple):
    record: VllmRecord
    worker: Worker


class AnnouncedServers:
    """A ``Follower`` of the registry of vLLM servers.

    A server at whose URL there is another worker adds none: it was given by its address, which may say more.
    """

    def __init__(self, pool: WorkerPool, *, only_tls: bool = False) -> None:
        """``only_tls``: servers that do not speak TLS are left out."""
        self._pool = pool
        self._only_tls = only_tls
        self._listed: dict[str, VllmStatus] = {}
        self._added: dict[str, _Added] = {}
        self._refusals = OncePerMinute()
        pool.on_left.append(self._left)

    def __repr__(self) -> str:
        return f"<AnnouncedServers {len(self._listed)} listed, {len(self._added)} added>"

    def apply(self, statuses: Iterable[VllmStatus], /) -> None:
        """Take over the registry's list. Needs a running loop."""
        before, self._listed = self._listed, self._by_url(statuses)
        for url, added in tuple(self._added.items()):
            if url not in self._listed or _key(self._listed[url].record) != _key(added.record):
                self._remove(url)
        workers = {worker.url: worker for worker in self._pool}
        for url in (before.keys() - self._listed.keys()) & workers.keys():
            workers[url].server.announced_load = None  # it has an address as well
        for url, status in self._listed.items():
            worker = workers.get(url)
            if worker is None:
                worker = self._pool.add_announced(status.record)
                self._added[url] = _Added(status.record, worker)
                log.info("worker %s announces itself", worker.worker_id)
            elif url in self._added and self._added[url].record.server_id != status.record.server_id:
                worker.standing.has_withdrawn = False  # the process before it has, and this one may be lost
                self._added[url] = _Added(status.record, worker)
            self._note_load(worker, status.load)

    def withdrew(self, status: VllmStatus) -> None:
        """Note that a server leaves by itself."""
        listed, added = self._listed.get(status.record.url), self._added.get(status.record.url)
        if added is not None and listed is not None and listed.record.server_id == status.record.server_id:
            added.worker.standing.has_withdrawn = True

    def _by_url(self, statuses: Iterable[VllmStatus]) -> dict[str, VllmStatus]:
        """The server that started last at each URL: a killed server is listed until its ttl is over."""
        found: dict[str, VllmStatus] = {}
        for status in sorted(statuses, key=lambda one: one.record.started_s):
            url = status.record.url
            if self._only_tls and not url.startswith("https://"):
                if self._refusals.due(url):
                    log.warning("vLLM server %s announces http://, but TLS is set up here: it is left out", url)
            else:
                found[url] = status
        return found

    def _note_load(self, worker: Worker, load: WorkerLoad) -> None:
        if load == worker.server.announced_load or worker.kind is not VLLM:
            return
        worker.server.announced_load = load
        if worker.usage.load_is_old and worker.models is not None:
            self._pool.reported(worker, load, None, worker.usage.in_flight)

    def _remove(self, url: str) -> None:
        worker = self._added.pop(url).worker
        log.info("worker %s is announced no more", worker.worker_id)
        self._pool.remove_static(worker)

    def _left(self, worker: Worker) -> None:
        """Add a server that is announced still, once its worker with an address is gone."""
        if worker.url in self._listed and worker.url not in self._added:
            asyncio.get_running_loop().call_soon(lambda: self.apply(tuple(self._listed.values())))


def _key(record: VllmRecord) -> tuple[object, ...]:
    """What a worker cannot change: a server with another key is a new worker."""
    places = record.side_channel_host, record.side_channel_port, record.handshake_port
    return *places, record.role, record.max_num_seqs, record.tp
