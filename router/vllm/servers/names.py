"""Host names in vLLM addresses: one with several IP addresses, as of a Kubernetes headless service, is several workers.

Names are looked up again and again. A name that has always had one address is one worker under that name, and so is one
that nothing is known of. With https the name stays whatever it stands for: certificates have names.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

from baton_serve.core.protocol.addresses import is_ip
from baton_serve.core.protocol.worker import Role
from baton_serve.core.protocol.worker_address import WorkerAddress
from baton_serve.router.pool import Worker, WorkerPool
from baton_serve.router.vllm.servers.problems import About, Problems

#: Most addresses of one name that become workers.
MAX_ADDRESSES = 256


#: See ``resolve``.
Resolve = Callable[[str], Awaitable[list[str]]]


async def resolve(host: str) -> list[str]:
    """The addresses of a host name as this machine resolves it. Raises OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]


def of_one_family(addresses: list[str]) -> list[str]:
    """The IPv4 addresses, or else the IPv6 ones, sorted: a machine with both kinds is one worker."""
    of_four = [address for address in addresses if ":" not in address]
    return sorted(set(of_four or addresses))[:MAX_ADDRESSES]


def looked_up(worker: Worker) -> WorkerAddress | None:
    """The address with which the worker was added, if its host name may stand for several."""
    given = worker.given
    if given is None or given.worker_id != worker.worker_id or given.speaks_tls or is_ip(given.host):
        return None
    return given if given.is_vllm else None


class HostName:
    """One host name, and the workers that it stands for."""

    def __init__(self, given: WorkerAddress, role: Role, pool: WorkerPool, problems: Problems, lookup: Resolve) -> None:
        self.given = given
        self._role = role
        self._pool = pool
        self._problems = problems
        self._lookup = lookup

    def __repr__(self) -> str:
        return f"<HostName {self.given.host} {len(self.workers())} workers>"

    async def look_up(self) -> bool:
        """Look the name up once. Returns whether it could be resolved.

        Workers stay while it cannot: DNS may be what is away.
        """
        try:
            found = of_one_family(await self._lookup(self.given.host))
        except (OSError, UnicodeError) as error:  # UnicodeError: a name that DNS cannot have
            why = error.strerror if isinstance(error, OSError) and error.strerror else "no such name"
            self._note(f"The host name cannot be resolved ({why}); it is tried again and again.")
            return False
        self._note("")
        self._stand_for(found)
        return True

    def workers(self) -> list[Worker]:
        """The workers that it stands for now."""
        return self._pool.given_as(self.given.worker_id)

    def _note(self, text: str) -> None:
        for worker in self.workers():
            self._problems.note(worker, About.NAME, text)

    def _stand_for(self, ips: list[str]) -> None:
        """Add workers for new addresses, and remove workers whose addresses are gone from DNS.

        Once a name has stood for several addresses, each address has a worker of its own, also when one is left. The
        worker under the name itself stays until one of them serves, so that the model is served all the time.
        """
        known = {worker.worker_id: worker for worker in self.workers()}
        is_split = len(ips) > 1 or any(worker_id != self.given.worker_id for worker_id in known)
        addresses = [self.given.at(ip) for ip in ips] if is_split else [self.given]
        wanted = {address.worker_id: address for address in addresses}
        taken = {worker.url for worker in self._pool}
        new = {
            address: self._role
            for worker_id, address in wanted.items()
            if worker_id not in known and address.url not in taken
        }
        if new:
            self._pool.add_addresses(new, given=self.given)
        is_served = any(worker.takes_work and worker.models for worker in self.workers() if worker.worker_id in wanted)
        for worker_id, worker in known.items():
            stays = worker_id == self.given.worker_id and worker.models and not is_served
            if worker_id not in wanted and not stays:
                self._pool.remove_static(worker)
