"""What ``make bench`` gets of the runs."""

from __future__ import annotations

from collections.abc import Sequence

from bench.report.model import Report, Table
from bench.router.result.tables import CPU, LATENCY, RATE, SHARE, flows, goals, ratios, table
from bench.router.rounds import Found
from bench.router.workloads import WORKLOADS

ABOUT = (
    "Stub engines answer at once, or at a fixed pace, so that what is measured is the router: the CPU time of all its "
    "processes on one core, while load and engines have another. The routers take turns in each run. Baton runs with "
    "all that is on by default, and a Redis beside it; the others place round robin. nginx makes one hop, to D, and "
    "shows what passing bytes on costs at least; sglang-router and vllm-router ask P and D, as Baton does. "
    "baton-compiled is the same Baton with its hot modules compiled (docs/hot-path.md).",
    "TTFT is the time to the first event of a stream, and added TTFT what of it is not the engines' part. Where load "
    "and engines take all of their core, requests a second say nothing about a router; CPU time does.",
)
SCALING = (
    "Two processes run on two cores, and this machine has no third for load and engines, which share the second one: "
    "requests a second can grow by what that core has left only."
)


def report(found: Found, batons: Sequence[str], routers: Sequence[str], scaling: Found | None) -> Report:
    """The report. ``routers`` are all in order, ``batons`` those of them that are Baton."""
    tables = _tables(found, batons, routers) if found.runs else []
    about = [*ABOUT, _workloads(), *_missing(found)]
    if scaling is not None and scaling.runs:
        names = list(dict.fromkeys(name for run in scaling.runs for name, _ in run))
        tables.append(table("Processes of one Baton, on two cores", (*RATE, *CPU, *SHARE), scaling.runs, names))
        about += [SCALING, *_missing(scaling)]
    return Report("The router beside other routers", "python -m bench.router", about, tables)


def _tables(found: Found, batons: Sequence[str], routers: Sequence[str]) -> list[Table]:
    all_tables = (
        table("CPU time, us", CPU, found.runs, routers),
        ratios(found.runs, routers),
        goals(found.runs, batons),
        table("Latency, ms", LATENCY, found.runs, routers),
        table("Rate", (*RATE, *SHARE), found.runs, routers),
        flows(found.runs, routers),
    )
    return [one for one in all_tables if one.rows]


def _workloads() -> str:
    return "Workloads: " + "; ".join(f"{name}, {one.about}" for name, one in WORKLOADS.items()) + "."


def _missing(found: Found) -> list[str]:
    return [f"Not measured: {name} ({reason})." for name, reason in found.missing.items()]
