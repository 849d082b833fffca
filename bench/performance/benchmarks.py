"""All benchmarks that ``make bench`` runs, in the order of the page."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Benchmark:
    """A benchmark: ``python -m bench.NAME --report FILE``, which also takes ``--runs N``.

    ``takes_vllm``: and ``--vllm FOLDER``, the environment of a vLLM to compare with.
    ``timeout_s`` is several times what it takes with its defaults on two cores. One that runs longer is ended.
    """

    name: str
    measures: str
    timeout_s: float = 1500
    takes_vllm: bool = False

    @property
    def module(self) -> str:
        """What Python is told to run."""
        return f"bench.{self.name}"


BENCHMARKS = (
    Benchmark("router", "the router beside other routers, on stub engines", timeout_s=3600),
    Benchmark("held", "what a held request costs"),
    Benchmark("handoff", "from the last prefill step of P to the first token of D", takes_vllm=True),
    Benchmark("block_reads", "block reads beside plain copies"),
    Benchmark("engine", "the engine beside vLLM", timeout_s=7200, takes_vllm=True),
    Benchmark("gpu", "steps on a GPU, with and without a gather, with and without graphs"),
    Benchmark("scale", "whole clusters on a simulated clock"),
)
