"""What Baton's router is to reach beside others in the same run. Pure."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from statistics import median
from typing import TYPE_CHECKING

from bench.report.spread import spread
from bench.router.result.numbers import best, compared, values

if TYPE_CHECKING:
    from bench.router.result.numbers import Of, Runs

#: Routers that do what Baton's does: nginx makes one hop only.
PEERS = ("sglang-router", "vllm-router")


@dataclass(frozen=True)
class Goal:
    """The median over the runs of a number of Baton is to be at most ``at_most``.

    The number is compared with that of the best of ``others`` in the same run; without others it is Baton's own.
    """

    workload: str
    what: str
    of: Of
    at_most: float
    others: tuple[str, ...] = ()
    compare: Callable[[float, float], float] = operator.truediv

    def row(self, runs: Runs, baton: str) -> list[str]:
        """Of what, beside whom, what was found, what is the goal, and whether it is reached."""
        other = best(runs, self.others, self.workload, self.of)
        if self.others and other is None:
            return [self.title, baton, "not measured: " + ", ".join(self.others), "-", self.goal, "-"]
        found = self._found(runs, baton, other)
        reached = "-" if not found else "yes" if median(found) <= self.at_most else "no"
        return [self.title, baton, other or "-", spread(found), self.goal, reached]

    @property
    def title(self) -> str:
        """The workload and the number."""
        return f"{self.workload}: {self.what}"

    @property
    def goal(self) -> str:
        """The goal in words."""
        return "not more" if self.compare is operator.sub else f"at most {self.at_most:g}"

    def _found(self, runs: Runs, baton: str, other: str | None) -> list[float]:
        if other is None:
            return values(runs, baton, self.workload, self.of)
        return compared(runs, baton, other, self.workload, self.of, self.compare)


NGINX = ("nginx",)
PER_REQUEST = "CPU per request"
PER_TOKEN = "CPU per token"

#: Those of CPU time are for the router whose modules are compiled.
GOALS = (
    Goal("A", PER_REQUEST, attrgetter("cpu_us_per_request"), 0.65, PEERS),
    Goal("D", PER_REQUEST, attrgetter("cpu_us_per_request"), 0.7, PEERS),
    Goal("B", PER_TOKEN, attrgetter("cpu_us_per_token"), 1.1, PEERS),
    Goal("B", "tokens in a chunk", attrgetter("tokens_per_chunk"), 4.0),
    Goal("C", PER_TOKEN, attrgetter("cpu_us_per_token"), 0.8, PEERS),
    Goal("C512", PER_TOKEN, attrgetter("cpu_us_per_token"), 0.8, PEERS),
    Goal("C", "ITL p99", attrgetter("itl_p99_ms"), 1.3, NGINX),
    Goal("C512", "ITL p99", attrgetter("itl_p99_ms"), 1.3, NGINX),
    Goal("C", "TTFT p99", attrgetter("ttft_p99_ms"), 2.0, NGINX),
    Goal("C512", "TTFT p99", attrgetter("ttft_p99_ms"), 2.0, NGINX),
    Goal("O", "added TTFT p50, ms", attrgetter("added_p50_ms"), 0.0, PEERS, operator.sub),
    Goal("O", "added TTFT p99, ms", attrgetter("added_p99_ms"), 0.0, PEERS, operator.sub),
)
