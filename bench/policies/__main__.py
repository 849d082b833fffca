"""``python -m bench.policies``: placement policies on real routers and real workers, in less than five minutes."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from bench.performance.page import markdown_table
from bench.policies.rounds import measure
from bench.policies.tables import report


def main() -> None:
    """Measure, print the table and, if asked to, write the report."""
    given = parser().parse_args()
    found = report(asyncio.run(measure(given.runs, given.seconds, given.rate, given.seed)), given)
    print(markdown_table(found.tables[0]))
    if given.report is not None:
        found.write(given.report)


def parser() -> argparse.ArgumentParser:
    """What the command takes."""
    made = argparse.ArgumentParser(prog="python -m bench.policies", description=__doc__)
    made.add_argument("--report", type=Path, help="file to write the report to")
    made.add_argument("--runs", type=int, default=5, help="repetitions (default %(default)s)")
    made.add_argument("--seconds", type=float, default=3.0, help="of arrivals in one run (default %(default)s)")
    made.add_argument(
        "--rate", type=float, default=1.0, help="new conversations a second between bursts (default %(default)s)"
    )
    made.add_argument("--seed", type=int, default=1, help="the first of the workloads' (default %(default)s)")
    return made


if __name__ == "__main__":
    main()
