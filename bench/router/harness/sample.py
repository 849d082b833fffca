"""The results of one window, the time in which a workload is measured. Pure."""

from __future__ import annotations

import msgspec

US = 1e6


class LoadResult(msgspec.Struct, frozen=True):
    """What the load generator counted in its window; ``started`` alone counts from its start to its end."""

    seconds: float
    started: int
    answered: int
    failed: int
    #: Events that came in the window and have content or a role.
    tokens: int
    #: All events, and the chunks that they came in, of streams that ended in the window.
    events: int
    chunks: int
    ttft_p50_us: float
    ttft_p99_us: float
    itl_p99_us: float
    #: Requests without an end when the generator gave up.
    unfinished: int


class Sample(msgspec.Struct, frozen=True):
    """One window of a workload on a router.

    ``harness_cpu_s`` is of stub engines and load generator together, which share a core. ``legs`` are the
    calls to engines for each request: to P, to D with P's blocks, to D without them, and those in SGLang's way.
    ``floor_ms`` is what the engines need for the first token.
    """

    router: str
    workload: str
    load: LoadResult
    router_cpu_s: float
    harness_cpu_s: float
    rss_mib: float
    legs: tuple[float, ...]
    floor_ms: float

    @property
    def cpu_us_per_request(self) -> float:
        """CPU time of the router for an answered request; NaN without any."""
        return _ratio(self.router_cpu_s * US, self.load.answered)

    @property
    def cpu_us_per_token(self) -> float:
        """CPU time of the router for a token; NaN without any."""
        return _ratio(self.router_cpu_s * US, self.load.tokens)

    @property
    def tokens_per_chunk(self) -> float:
        """Events that came together; more than 1 if the router merges them. NaN without any."""
        return _ratio(self.load.events, self.load.chunks)

    @property
    def ttft_p50_ms(self) -> float:
        """Time to the first event of a stream, to the end of an answer without; the median."""
        return self.load.ttft_p50_us / 1e3

    @property
    def ttft_p99_ms(self) -> float:
        """The same, of the slowest hundredth."""
        return self.load.ttft_p99_us / 1e3

    @property
    def added_p50_ms(self) -> float:
        """What is not the engines' part of the median."""
        return self.ttft_p50_ms - self.floor_ms

    @property
    def added_p99_ms(self) -> float:
        """The same, of the slowest hundredth."""
        return self.ttft_p99_ms - self.floor_ms

    @property
    def itl_p99_ms(self) -> float:
        """Time between two tokens of a stream, of the slowest hundredth."""
        return self.load.itl_p99_us / 1e3

    @property
    def requests_per_s(self) -> float:
        """Answered requests a second."""
        return self.load.answered / self.load.seconds

    @property
    def tokens_per_s(self) -> float:
        """Tokens a second."""
        return self.load.tokens / self.load.seconds

    @property
    def harness_share(self) -> float:
        """The part of their core that stub engines and load generator take; near 1 they are what limits the load."""
        return self.harness_cpu_s / self.load.seconds

    @property
    def failed(self) -> int:
        """Requests without a right answer."""
        return self.load.failed + self.load.unfinished


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator else float("nan")
