"""``python -m bench.connector``: what clients get of a hand-off that D reads after P has given the blocks away. P and D
load vLLM's own connector first, then Baton's without its fence, then Baton's. An answer is wrong if its text or a
logprob is not that of the same prompt computed by D alone.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING

from baton_serve.baton.processes.child import ChildDiedError
from baton_serve.baton.processes.vllm.connectors import BATON, STOCK, UNFENCED
from baton_serve.baton.processes.vllm.program import VllmError, find_vllm
from bench.client import AnswerError
from bench.connector.pair import pair
from bench.connector.stale_reads import NUM_AT_ONCE, Result, StaleReads, shape_with
from bench.report.arguments import at_least
from bench.report.command import VLLM_HELP
from bench.report.model import Table

if TYPE_CHECKING:
    from collections import Counter

    from baton_serve.baton.processes.vllm.program import VllmProgram

CONNECTORS = {"NixlConnector": STOCK, "BatonConnector, fence off": UNFENCED, "BatonConnector": BATON}


async def measure(program: VllmProgram, rounds: int, folder: Path) -> dict[str, Result]:
    """One pair of servers after the other."""
    results = {}
    for number, (name, connector) in enumerate(CONNECTORS.items()):
        place = folder / str(number)
        place.mkdir()
        async with pair(program, shape_with(connector), place) as both:
            results[name] = await StaleReads(both).run(rounds)
    return results


def _row(name: str, one: Result) -> list[str]:
    def said(checks: Counter[str]) -> str:
        return ", ".join(f"{verdict} {number}" for verdict, number in sorted(checks.items()))

    late = [str(one.num_late), str(one.num_late_wrong), said(one.late_checks)]
    return [name, *late, str(one.num_on_time), str(one.num_on_time_wrong), said(one.on_time_checks)]


def main() -> int:
    """The command line; returns the exit code: 0 if no answer with the fence was wrong."""
    parser = argparse.ArgumentParser(prog="python -m bench.connector", description=__doc__)
    parser.add_argument("--vllm", help=VLLM_HELP)
    about = f"each of {NUM_AT_ONCE} late hand-offs and as many in time (default %(default)s)"
    parser.add_argument("--rounds", type=at_least(1), default=25, help=about)
    given = parser.parse_args()
    folder = Path(mkdtemp(prefix="baton-bench-connector-"))
    try:
        results = asyncio.run(measure(find_vllm(given.vllm), given.rounds, folder))
    except (VllmError, ChildDiedError, AnswerError) as error:
        print(f"{error} (logs in {folder})", file=sys.stderr)
        return 1
    columns = ["connector", "late reads", "wrong", "fence says", "reads in time", "wrong", "fence says"]
    print(Table("Late reads", columns, [_row(*found) for found in results.items()]).markdown())
    fenced = results["BatonConnector"]
    return int(fenced.num_late_wrong + fenced.num_on_time_wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
