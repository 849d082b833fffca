"""``python -m bench.handshakes``: what prefill engines that are gone cost the others, in about three minutes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from bench.handshakes.rounds import NUM_BAD, measure
from bench.handshakes.tables import report
from bench.report import command
from bench.report.arguments import at_least

if TYPE_CHECKING:
    from argparse import ArgumentParser


def main() -> None:
    """Measure, print and, if asked to, write the report."""
    given = parser().parse_args()
    runs = asyncio.run(measure(given.engines, given.runs, given.seed))
    command.finish(report(runs, given.engines), given.report)


def parser() -> ArgumentParser:
    """What the command takes."""
    made = command.parser("bench.handshakes", __doc__, "runs of each kind")
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
