"""``python -m bench.stale_reads``: what clients get of a hand-off that D reads after P has given the blocks away.

P and D load vLLM's own connector first, then Baton's without its fence, then Baton's. An answer is wrong if its text or
a logprob is not that of the same prompt computed by D alone.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from baton.processes.child import ChildDiedError
from baton.processes.vllm.connectors import BATON, STOCK, UNFENCED
from baton.processes.vllm.program import VllmError, find_vllm
from bench.report.arguments import at_least
from bench.stale_reads.pair import pair
from bench.stale_reads.rounds import NUM_AT_ONCE, StaleReads, shape_with

if TYPE_CHECKING:
    from baton.processes.vllm.program import VllmProgram
    from bench.stale_reads.rounds import Result

CONNECTORS = {"NixlConnector": STOCK, "BatonConnector, fence off": UNFENCED, "BatonConnector": BATON}


async def measure(program: VllmProgram, rounds: int, folder: Path) -> dict[str, Result]:
    """The result of each connector, by its name."""
    results = {}
    for number, (name, connector) in enumerate(CONNECTORS.items()):
        place = folder / str(number)
        place.mkdir()
        async with pair(program, shape_with(connector), place) as both:
            results[name] = await StaleReads(both).run(rounds)
    return results


def table(results: dict[str, Result]) -> Table:
    """The results, a row for each connector."""
    shown = Table("connector", "late", "wrong", "fence says", "on time", "wrong", "fence says")
    for name, one in results.items():
        late = ", ".join(f"{verdict} {number}" for verdict, number in sorted(one.late_checks.items()))
        on_time = ", ".join(f"{verdict} {number}" for verdict, number in sorted(one.on_time_checks.items()))
        numbers = (one.num_late, one.num_late_wrong, late, one.num_on_time, one.num_on_time_wrong, on_time)
        shown.add_row(name, *map(str, numbers))
    return shown


def main() -> int:
    """The command line; returns the exit code: 0 if no answer with the fence was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vllm", help="a vllm script, a Python, or the folder of an environment; default: PATH")
    parser.add_argument(
        "--rounds", type=at_least(1), default=25, help=f"rounds of {NUM_AT_ONCE} late hand-offs each; default 25"
    )
    given = parser.parse_args()
    folder = Path(mkdtemp(prefix="baton-stale-reads-"))
    try:
        results = asyncio.run(measure(find_vllm(given.vllm), given.rounds, folder))
    except (VllmError, ChildDiedError) as error:
        print(f"{error} (logs in {folder})", file=sys.stderr)
        return 1
    Console().print(table(results))
    fenced = results["BatonConnector"]
    return int(fenced.num_late_wrong + fenced.num_on_time_wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
