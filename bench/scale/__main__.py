"""``python -m bench.scale``: questions that one machine cannot answer, asked of simulated clusters.

No random result: each run prints its seeds, and the same seeds give the same tables. docs/scale.md says what is
simulated and what is the project's own code.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from bench.report import command
from bench.report.arguments import above_zero, at_least
from bench.report.model import Plot, Report, Table
from bench.scale.costs import Costs
from bench.scale.load.load import generated, recorded
from bench.scale.load.trace import BadTrace, read_trace
from bench.scale.questions import choice, leases, policies, redis, routers
from bench.scale.runs import Setting

QUESTIONS = {
    "choice": choice.ask,
    "leases": leases.ask,
    "policies": policies.ask,
    "routers": routers.ask,
    "redis": redis.ask,
}
ABOUT = """\
A whole cluster on one simulated clock. Which worker is next, who waits, what follows a failure and how long blocks are
kept is decided by the project's own code; workers, network and the routers' CPU are modelled, with costs that other
benchmarks measured. [scale.md](scale.md) says what is what, and what this cannot tell."""


def main() -> int:
    """Ask what was asked for, print it and write the report; 2 for a trace that cannot be read."""
    given = _parser().parse_args()
    try:
        load = generated() if given.trace is None else recorded(read_trace(given.trace))
    except (BadTrace, OSError) as error:
        print(f"bench.scale: {error}", file=sys.stderr)
        return 2
    seeds = range(1, given.runs + 1)
    setting = Setting(load, Costs(), seeds, num_workers=given.workers, scale=given.shorten)
    tables: list[Table] = []
    plots: list[Plot] = []
    for name in given.only or QUESTIONS:
        began_s = time.monotonic()
        more_tables, more_plots = QUESTIONS[name](setting)
        print(f"({name}: {time.monotonic() - began_s:.0f} s)", flush=True)
        tables += more_tables
        plots += more_plots
    about = [ABOUT, f"Load: {load.name}. Seeds: {', '.join(map(str, seeds))}."]
    command.finish(Report("A simulated cluster", "python -m bench.scale", about, tables, plots), given.report)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = command.parser("bench.scale", __doc__, "seeds, from 1 on")
    parser.add_argument("--trace", type=Path, help="a recorded load: JSON lines, see bench/scale/load/trace.py")
    parser.add_argument("--only", action="append", choices=QUESTIONS, help="may be given several times")
    parser.add_argument("--workers", type=at_least(4), default=48, help="P and D together (default %(default)s)")
    parser.add_argument("--shorten", type=above_zero, default=1.0, help="length of a run, of what it is (default 1)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
