"""``python -m bench.held``: what held requests cost a router, in about five minutes."""

from __future__ import annotations

import asyncio

from bench.held.scenario import Load, Outcome, measure
from bench.held.tables import report
from bench.report import command

LOAD = Load()


def main() -> None:
    """Measure, print and, if asked to, write the report."""
    given = command.parser("bench.held", __doc__).parse_args()
    command.finish(report([_run() for _ in range(given.runs)], LOAD), given.report)


def _run() -> Outcome:
    outcome = asyncio.run(measure(LOAD))
    for level in outcome.levels:
        print(
            f"{level.num_held} held: renewing {100 * level.router.second_threads:.1f} %, "
            f"router {100 * level.router.total:.1f} %, Redis {100 * level.redis.total:.1f} % of a core",
            flush=True,
        )
    print(
        f"least left {outcome.steady.least_ms}, in the burst {outcome.burst.least_ms} ms; {outcome.num_lapsed} lapsed, "
        f"{outcome.num_done} answered, {outcome.num_failed} failed {outcome.failure}",
        flush=True,
    )
    return outcome


if __name__ == "__main__":
    main()
