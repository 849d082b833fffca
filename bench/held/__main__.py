"""``python -m bench.held``: what held requests and open streams cost a router, in about ten minutes."""

from __future__ import annotations

import argparse
import asyncio

from bench.held.scenario import Load, Outcome, measure
from bench.held.tables import MIB, report
from bench.report.arguments import at_least, new_file

HELD = Load()
#: Memory grows evenly, so one run is enough.
CROWD = Load(levels=(0, 30_000), num_burst=0, num_streams=10_000)


def main() -> None:
    """Measure, print and, if asked to, write the report."""
    parser = argparse.ArgumentParser(prog="python -m bench.held", description=__doc__)
    parser.add_argument("--report", type=new_file, help="file to write the report to")
    parser.add_argument("--runs", type=at_least(1), default=5, help="runs with held requests (default %(default)s)")
    given = parser.parse_args()
    runs = [_run(HELD) for _ in range(given.runs)]
    found = report(runs, HELD, [_run(CROWD)], CROWD)
    for table in found.tables:
        print(f"\n{table.title}\n" + "\n".join(" | ".join(row) for row in (table.columns, *table.rows)))
    if given.report is not None:
        found.write(given.report)


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
