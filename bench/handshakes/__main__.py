"""``python -m bench.handshakes``: what prefill engines that are gone cost the others, in about three minutes."""

from __future__ import annotations

import argparse
import asyncio

from bench.handshakes.rounds import NUM_BAD, measure
from bench.handshakes.tables import report
from bench.performance.page import markdown_table
from bench.report.arguments import at_least, new_file


def main() -> None:
    """Measure, print and, if asked to, write the report."""
    given = parser().parse_args()
    found = report(asyncio.run(measure(given.engines, given.runs, given.seed)), given.engines)
    for table in found.tables:
        print(f"\n{markdown_table(table)}")
    if given.report is not None:
        found.write(given.report)


def parser() -> argparse.ArgumentParser:
    """What the command takes."""
    made = argparse.ArgumentParser(prog="python -m bench.handshakes", description=__doc__)
    made.add_argument("--report", type=new_file, help="file to write the report to")
    made.add_argument("--runs", type=at_least(1), default=5, help="runs of each kind (default %(default)s)")
    made.add_argument(
        "--engines",
        type=at_least(NUM_BAD + 1),
        default=32,
        help=f"prefill engines, more than {NUM_BAD} (default %(default)s)",
    )
    made.add_argument("--seed", type=int, default=0, help="of the prompts (default %(default)s)")
    return made


if __name__ == "__main__":
    main()
