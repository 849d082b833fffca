"""``python -m bench.policies``: placement policies on real routers and real workers, in less than five minutes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from bench.policies.rounds import measure
from bench.policies.tables import report
from bench.report import command
from bench.report.arguments import above_zero

if TYPE_CHECKING:
    from argparse import ArgumentParser


def main() -> None:
    """Measure, print the table and, if asked to, write the report."""
    given = parser().parse_args()
    found = report(asyncio.run(measure(given.runs, given.seconds, given.rate, given.seed)), given)
    command.finish(found, given.report)


def parser() -> ArgumentParser:
    """What the command takes."""
    made = command.parser("bench.policies", __doc__, "repetitions")
    made.add_argument("--seconds", type=above_zero, default=3.0, help="of arrivals in one run (default %(default)s)")
    made.add_argument(
        "--rate", type=above_zero, default=1.0, help="new conversations a second between bursts (default %(default)s)"
    )
    made.add_argument("--seed", type=int, default=1, help="the first of the workloads' (default %(default)s)")
    return made


if __name__ == "__main__":
    main()
