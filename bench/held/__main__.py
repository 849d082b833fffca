"""``python -m bench.held``: what held requests and open streams cost a router, in about ten minutes."""

from __future__ import annotations

import asyncio

from bench.held.scenario import Load, Outcome, measure
from bench.held.tables import MIB, report
from bench.report import command

HELD = Load()
#: Memory grows evenly, so one run is enough.
CROWD = Load(levels=(0, 30_000), num_burst=0, num_streams=10_000)


def main() -> None:
    """Measure, print and, if asked to, write the report."""
    given = command.parser("bench.held", __doc__, "runs with held requests").parse_args()
    runs = [_run(HELD) for _ in range(given.runs)]
    command.finish(report(runs, HELD, [_run(CROWD)], CROWD), given.report)


def _run(load: Load) -> Outcome:
    outcome = asyncio.run(measure(load))
    for level in outcome.levels:
        print(
            f"{load.num_streams} streams, {level.num_held} held: renewing {100 * level.router.second_threads:.1f} %, "
            f"router {100 * level.router.total:.1f} %, Redis {100 * level.redis.total:.1f} % of a core, "
            f"{level.memory.pss_bytes / MIB:.0f} MiB",
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
