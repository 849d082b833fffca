"""Asks the routers as an operator does. Any of them answers for all."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import httpx
from prometheus_client.parser import text_string_to_metric_families

from deploy.drill.errors import DrillError

if TYPE_CHECKING:
    from collections.abc import Callable

#: Characters of a container's short id, which ``docker ps`` shows and which is its host name.
SHORT_ID_CHARS = 12

ANSWER_TIMEOUT_S = 10.0

FoundT = TypeVar("FoundT")


class Admin:
    """The admin API of every router, with one token. Methods raise httpx.HTTPError, also for the status of an error."""

    def __init__(self, token: str) -> None:
        headers = {"Authorization": f"Bearer {token}"}
        # A connection that was kept could have been left behind by a router that was killed.
        limits = httpx.Limits(max_keepalive_connections=0)
        self._http = httpx.Client(headers=headers, timeout=ANSWER_TIMEOUT_S, limits=limits, trust_env=False)

    def workers(self, url: str) -> list[Any]:
        """The workers that the router at ``url`` can reach."""
        return [worker for worker in self._ask(url, "workers")["workers"] if worker["healthy"]]

    def requests(self, url: str) -> list[Any]:
        """The live requests of all routers. Raises LookupError when a router is missing in the list."""
        answer = self._ask(url, "requests")
        if answer["unreachable_routers"]:
            raise LookupError(f"{url} does not reach {answer['unreachable_routers']}")
        return list(answer["requests"])

    def num_leases(self, url: str) -> int:
        """How many leases there are in Redis, for requests of any router."""
        return len(self._ask(url, "leases")["leases"])

    def num_kept(self, url: str) -> int:
        """How much workers keep for requests: sequences, reads, leases, and blocks that are not free, added up."""
        counts = ("running", "waiting", "reading", "leases", "pinned_blocks", "leased_blocks")
        return sum(worker[each] for worker in self.workers(url) for each in counts)

    def router_id(self, url: str) -> str:
        """The id of the router at ``url``."""
        return next(str(each["id"]) for each in self._ask(url, "routers")["routers"] if each["is_this"])

    def abort(self, url: str, request_id: str) -> None:
        """Abort a request of any router."""
        self._ask(url, f"requests/{request_id}/abort", "POST")

    def host_of(self, url: str, worker_id: str) -> str:
        """The host name of a worker's container, which is its short id. Raises LookupError."""
        urls = {worker["id"]: worker["url"] for worker in self._ask(url, "workers")["workers"]}
        return urlsplit(urls[worker_id]).hostname or ""

    def num_resumed(self, url: str) -> int:
        """How many streams of the router at ``url`` have gone on with another worker so far."""
        families = text_string_to_metric_families(self._http.get(f"{url}/metrics").raise_for_status().text)
        samples = [each for family in families if family.name == "baton_router_resumed" for each in family.samples]
        return sum(int(each.value) for each in samples if each.labels.get("outcome") == "resumed")

    def _ask(self, url: str, path: str, method: str = "GET") -> Any:
        return self._http.request(method, f"{url}/admin/{path}").raise_for_status().json()


def until(limit_s: float, what: str, find: Callable[[], FoundT | None], pause_s: float = 0.1) -> FoundT:
    """Ask again and again until ``find`` returns something true: no event reaches us from inside the containers.

    Raises DrillError.
    """
    end_s = time.monotonic() + limit_s
    while time.monotonic() < end_s:
        with contextlib.suppress(httpx.HTTPError, ValueError, LookupError):
            if found := find():
                return found
        time.sleep(pause_s)
    raise DrillError(f"not within {limit_s:.0f} s: {what}")
