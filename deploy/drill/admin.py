"""What an operator asks the routers: any of them answers for all."""

from __future__ import annotations

import contextlib
import json
import time
import urllib.request
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from prometheus_client.parser import text_string_to_metric_families

from deploy.drill.errors import DrillError

if TYPE_CHECKING:
    from collections.abc import Callable

#: What ``docker ps`` shows of the id of a container; it is also the host name that the container has.
SHORT_ID_CHARS = 12

FoundT = TypeVar("FoundT")


class Admin:
    """The admin API of every router, on one token. Methods raise OSError; HTTP errors are among them."""

    def __init__(self, token: str) -> None:
        self._headers = {"Authorization": f"Bearer {token}"}

    def workers(self, url: str) -> list[Any]:
        """Those that the router at ``url`` can reach."""
        return [worker for worker in self._ask(url, "workers")["workers"] if worker["healthy"]]

    def requests(self, url: str) -> list[Any]:
        """The live requests of all routers. Raises LookupError when one did not answer: not the whole list."""
        answer = self._ask(url, "requests")
        if answer["unreachable_routers"]:
            raise LookupError(f"{url} does not reach {answer['unreachable_routers']}")
        return list(answer["requests"])

    def num_leases(self, url: str) -> int:
        """Of all routers' requests: they are counted where they are kept."""
        return len(self._ask(url, "leases")["leases"])

    def num_kept(self, url: str) -> int:
        """What workers have for requests: sequences, reads, leases, and blocks that are not free."""
        counts = ("running", "waiting", "reading", "leases", "pinned_blocks", "leased_blocks")
        return sum(worker[each] for worker in self.workers(url) for each in counts)

    def router_id(self, url: str) -> str:
        """Whose requests are those of the router at ``url``."""
        return next(str(each["id"]) for each in self._ask(url, "routers")["routers"] if each["is_this"])

    def abort(self, url: str, request_id: str) -> None:
        """End it, whichever router has it."""
        self._ask(url, f"requests/{request_id}/abort", "POST")

    def host_of(self, url: str, worker_id: str) -> str:
        """Of the container that is the worker: its short id. Raises LookupError."""
        urls = {worker["id"]: worker["url"] for worker in self._ask(url, "workers")["workers"]}
        return urlsplit(urls[worker_id]).hostname or ""

    def num_resumed(self, url: str) -> int:
        """Streams of the router at ``url`` that broke off and went on with another worker, so far."""
        with urllib.request.urlopen(f"{url}/metrics", timeout=10) as response:
            families = text_string_to_metric_families(response.read().decode())
        samples = [each for family in families if family.name == "baton_router_resumed" for each in family.samples]
        return sum(int(each.value) for each in samples if each.labels.get("outcome") == "resumed")

    def _ask(self, url: str, path: str, method: str = "GET") -> Any:
        request = urllib.request.Request(f"{url}/admin/{path}", headers=self._headers, method=method)
        with urllib.request.urlopen(request, timeout=10) as response:
            return json.load(response)


def until(limit_s: float, what: str, find: Callable[[], FoundT | None], pause_s: float = 0.1) -> FoundT:
    """Ask again and again until it finds something: nobody outside is told of what happens in the containers.

    Raises DrillError.
    """
    end_s = time.monotonic() + limit_s
    while time.monotonic() < end_s:
        with contextlib.suppress(OSError, ValueError, LookupError):
            if found := find():
                return found
        time.sleep(pause_s)
    raise DrillError(f"not within {limit_s:.0f} s: {what}")
