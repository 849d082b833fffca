"""What things cost in the simulation, each with the measurement that it comes from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Costs:
    """Seconds, unless the name says otherwise.

    The engine is the demo model's size, 4.5 million parameters in float32 on one core; the router is one process on one
    core. Both were measured on the machine of the project's benchmarks. The numbers of another engine take their place
    with ``dataclasses.replace``.
    """

    #: A prompt's tokens on P: 6617 tokens/s (engine benchmark, 4.5 M, prefill).
    prefill_token_s: float = 1 / 6617
    #: One step of D with n sequences: ``step_s + n * step_sequence_s``, fitted to 218, 921 and 1787 tokens/s at 1, 8
    #: and 32 sequences (engine benchmark, 4.5 M, decode). It gives 4.7, 7.7 and 18.1 ms; measured: 4.6, 8.7, 17.9.
    step_s: float = 0.0043
    step_sequence_s: float = 0.00043
    #: From P's last step to D's first token, less a step of D, fitted to 5.5, 13 and 39 ms at 100, 1,500 and 6,000
    #: tokens (hand-off benchmark, 4.5 M, float32). It gives 5.6, 13.4 and 38.6 ms.
    hand_off_s: float = 0.005
    hand_off_token_s: float = 5.6e-6
    #: CPU of a router for a request without its tokens: 308 us (router benchmark, workload A, 1 KB). It does not grow
    #: with the workers among which P and D are chosen (docs/scale.md).
    router_request_s: float = 308e-6
    #: CPU of a router for an announcement of a worker: 0.23 of a core for 4,000 a second, from a real Redis.
    router_report_s: float = 58e-6
    #: CPU of a router for a token of a stream that comes alone: 37.6 us (router benchmark, workload C, 128 streams).
    router_token_s: float = 37.6e-6
    #: Between two load reports of a worker: what an idle worker announces by. A busy one also announces each begin
    #: and end of a request, at most every 20 ms. The simulation keeps the idle rate: it tells the least that reports
    #: cost, and its routers know loads that are older than real ones.
    report_interval_s: float = 0.25
    #: From the death of a process until those who talk to it know: a broken connection on one network.
    notice_s: float = 0.001
    #: From the death of a worker until another one runs in its place: assumed.
    restart_s: float = 10.0

    def reports_share(self, num_workers: int) -> float:
        """The share of a router's core that workers' announcements take."""
        return num_workers / self.report_interval_s * self.router_report_s

    def prefill_s(self, num_tokens: int) -> float:
        """The time P computes for that many tokens."""
        return num_tokens * self.prefill_token_s

    def read_s(self, num_tokens: int) -> float:
        """From P's answer until D has that many tokens' blocks, without any wait."""
        return self.hand_off_s + num_tokens * self.hand_off_token_s

    def decode_s(self, num_sequences: int) -> float:
        """The time of one step of D."""
        return self.step_s + num_sequences * self.step_sequence_s
