"""The interleaved runs: in each, all routers serve, and take turns with each workload."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from bench.processes import Cores
from bench.router.harness.engines import Engines, engines
from bench.router.harness.flow import complaints
from bench.router.harness.load import Load, Target
from bench.router.harness.sample import Sample
from bench.router.native.build import build
from bench.router.routers.router import Router, RouterError, running
from bench.router.workloads import Workload


@dataclass(frozen=True)
class Plan:
    """What is measured. ``seconds`` is the length of all windows, if it is not that of each workload."""

    routers: Sequence[Router]
    workloads: Sequence[Workload]
    num_runs: int
    cores: Cores
    folder: Path
    seconds: float | None = None


@dataclass
class Found:
    """What the runs have shown: the samples of each run, by router and workload; and why there are none of a router."""

    runs: list[dict[tuple[str, str], Sample]] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)


def measure(plan: Plan, show: Callable[[str], None]) -> Found:
    """Run all. A router that does not start, or takes another flow than it says, is left out from then on.

    Raises BuildError, EngineError and LoadError.
    """
    found = Found()
    load = Load(build("load", plan.folder), plan.folder / "load.log", plan.cores.others)
    program = build("engine", plan.folder)
    with engines(program, plan.folder / "engine.log", plan.cores.others) as stubs:
        for number in range(plan.num_runs):
            found.runs.append(_run(plan, number, load, stubs, found.missing, show))
    return found


def _run(
    plan: Plan, number: int, load: Load, stubs: Engines, missing: dict[str, str], show: Callable[[str], None]
) -> dict[tuple[str, str], Sample]:
    samples: dict[tuple[str, str], Sample] = {}
    with ExitStack() as stack:
        targets = [
            target
            for router in plan.routers
            if router.name not in missing
            if (target := _start(plan, router, stubs, stack, missing)) is not None
        ]
        for turn, workload in enumerate(plan.workloads):
            first = (number + turn) % max(1, len(targets))
            for target in targets[first:] + targets[:first]:
                sample = load.measure(workload, target, stubs, plan.seconds)
                samples[target.name, workload.name] = sample
                show(f"run {number + 1} of {plan.num_runs}: {line(sample)}")
    for name, reason in missing.items():
        show(f"{name}: {reason}")
    return samples


def _start(plan: Plan, router: Router, stubs: Engines, stack: ExitStack, missing: dict[str, str]) -> Target | None:
    try:
        target = stack.enter_context(running(router, stubs, plan.folder, plan.cores))
    except RouterError as error:
        missing[router.name] = str(error)
        return None
    wrong = complaints(router.flow, target.port, stubs)
    if wrong:
        missing[router.name] = f"its answers are not right: {wrong[0]}"
        return None
    return target


def line(sample: Sample) -> str:
    """One window for a person who waits."""
    load = sample.load
    chunks = f", {sample.tokens_per_chunk:.1f} tokens in a chunk" if load.chunks else ""
    cpu = f"{sample.cpu_us_per_request:.0f} us per request"
    cpu += f", {sample.cpu_us_per_token:.1f} us per token" if load.tokens else ""
    return (
        f"{sample.workload:4} {sample.router:14} {cpu}{chunks}; {sample.requests_per_s:.0f} requests/s; "
        f"TTFT {sample.ttft_p50_ms:.1f} and {sample.ttft_p99_ms:.1f} ms, ITL p99 {sample.itl_p99_ms:.1f} ms; "
        f"{sample.failed} failed; load and engines take {sample.harness_share:.0%} of their core"
    )
