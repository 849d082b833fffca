"""``python -m bench.policies``: placement policies on real routers and real workers, in less than five minutes."""

from __future__ import annotations

import argparse
import asyncio

from bench.performance.page import markdown_table
from bench.policies.rounds import measure
from bench.policies.tables import report
from bench.report.arguments import above_zero, at_least, new_file


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
    made.add_argument("--report", type=new_file, help="file to write the report to")
    made.add_argument("--runs", type=at_least(1), default=5, help="repetitions (default %(default)s)")
    made.add_argument("--seconds", type=above_zero, default=3.0, help="of arrivals in one run (default %(default)s)")
    made.add_argument(
        "--rate", type=above_zero, default=1.0, help="new conversations a second between bursts (default %(default)s)"
    )
    made.add_argument("--seed", type=int, default=1, help="the first of the workloads' (default %(default)s)")
    return made


if __name__ == "__main__":
    main()
