"""What the clients of one window do. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Workload:
    """Requests of one kind. In a closed loop (``rate`` 0) each connection has one request at all times; in an open one
    ``rate`` requests come a second, by a Poisson process, over as many connections as they need.

    ``interval_us`` is between two tokens of a stream, 0 for as fast as can be; ``prefill_us`` is what P takes.
    """

    name: str
    about: str
    num_connections: int
    seconds: float
    max_tokens: int = 1
    stream: bool = False
    prompt_bytes: int = 1024
    interval_us: int = 0
    prefill_us: int = 0
    rate: float = 0.0

    @property
    def per(self) -> str:
        """What its CPU time is counted by."""
        return "token" if self.stream else "request"

    def floor_ms(self, has_prefill: bool) -> float:
        """The engines' part of the time to the first token, for a router that waits for P or does not."""
        return ((self.prefill_us if has_prefill else 0) + self.interval_us) / 1e3


WORKLOADS = {
    one.name: one
    for one in (
        Workload("A", "1 KB prompt, one token, 32 connections", 32, 2.0),
        Workload("B", "streams of 128 tokens from engines that do not wait, 16 connections", 16, 2.0, 128, True),
        Workload("C", "128 streams, a token each 10 ms", 128, 3.0, 64, True, interval_us=10_000),
        Workload("C512", "512 streams, a token each 20 ms", 512, 4.0, 64, True, interval_us=20_000),
        Workload("D", "100 KB prompt, one token, 8 connections", 8, 2.0, prompt_bytes=102_400),
        Workload(
            "O",
            "60 requests a second, streams of 32 tokens, 4 KB prompt, P takes 5 ms and a token 10 ms",
            1024,
            4.0,
            32,
            True,
            4096,
            interval_us=10_000,
            prefill_us=5_000,
            rate=60.0,
        ),
    )
}
