"""``python -m bench.connector late``: what clients get of a hand-off that D reads after P has given the blocks away. P
and D load vLLM's own connector first, then Baton's without its fence, then Baton's. An answer is wrong if its text or a
logprob is not that of the same prompt computed by D alone.

``python -m bench.connector cost``: latency and throughput of hand-offs in time, with Baton's connector over vLLM's own.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from baton_serve.baton.processes.child import ChildDiedError
from baton_serve.baton.processes.vllm.connectors import BATON, STOCK, UNFENCED
from baton_serve.baton.processes.vllm.program import VllmError, find_vllm
from bench.client import AnswerError
from bench.connector.cost import Costs, cost_shape, measure, ratios
from bench.connector.pair import pair
from bench.connector.stale_reads import NUM_AT_ONCE, StaleReads, shape_with
from bench.report.arguments import at_least
from bench.report.command import VLLM_HELP
from bench.report.spread import spread

if TYPE_CHECKING:
    from collections.abc import Callable

    from baton_serve.baton.processes.vllm.program import VllmProgram
    from bench.connector.stale_reads import Result

OURS, THEIRS = "BatonConnector", "NixlConnector"
CONNECTORS = {THEIRS: STOCK, "BatonConnector, fence off": UNFENCED, OURS: BATON}
#: What is compared, and how it is read.
COSTS: dict[str, Callable[[Costs], list[float]]] = {
    "hand-off, ms": lambda costs: [1e3 * value for value in costs.hand_off_s],
    "TTFT, ms": lambda costs: [1e3 * value for value in costs.ttft_s],
    "tokens/s": lambda costs: costs.tokens_per_s,
}


async def late(program: VllmProgram, rounds: int, folder: Path) -> tuple[Table, int]:
    """The table, and how many answers with the fence were wrong."""
    results: dict[str, Result] = {}
    for number, (name, connector) in enumerate(CONNECTORS.items()):
        place = folder / str(number)
        place.mkdir()
        async with pair(program, shape_with(connector), place) as both:
            results[name] = await StaleReads(both).run(rounds)
    shown = Table("connector", "late", "wrong", "fence says", "on time", "wrong", "fence says")
    for name, one in results.items():
        late_checks, on_time = (
            ", ".join(f"{verdict} {number}" for verdict, number in sorted(checks.items()))
            for checks in (one.late_checks, one.on_time_checks)
        )
        numbers = (one.num_late, one.num_late_wrong, late_checks, one.num_on_time, one.num_on_time_wrong, on_time)
        shown.add_row(name, *map(str, numbers))
    return shown, results[OURS].num_late_wrong + results[OURS].num_on_time_wrong


async def cost(program: VllmProgram, rounds: int, folder: Path) -> tuple[Table, int]:
    """The table, and 0: a cost is not wrong."""
    async with AsyncExitStack() as stack:
        pairs = {}
        for name in (THEIRS, OURS):
            (folder / name).mkdir()
            pairs[name] = await stack.enter_async_context(pair(program, cost_shape(CONNECTORS[name]), folder / name))
        costs = await measure(pairs, rounds)
    shown = Table("median (min to max)", THEIRS, OURS, "ratio of each round")
    for name, values in COSTS.items():
        numbers = (values(costs[THEIRS]), values(costs[OURS]), ratios(costs, OURS, THEIRS, values))
        shown.add_row(name, *map(spread, numbers))
    return shown, 0


def main() -> int:
    """The command line; returns the exit code: 0 if no answer with the fence was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("late", "cost"))
    parser.add_argument("--vllm", help=VLLM_HELP)
    parser.add_argument(
        "--rounds",
        type=at_least(1),
        help=f"default: 25 of {NUM_AT_ONCE} late hand-offs and as many in time, or 5 of the cost",
    )
    given = parser.parse_args()
    folder = Path(mkdtemp(prefix="baton-bench-connector-"))
    run, rounds = (late, 25) if given.what == "late" else (cost, 5)
    try:
        shown, num_wrong = asyncio.run(run(find_vllm(given.vllm), given.rounds or rounds, folder))
    except (VllmError, ChildDiedError, AnswerError) as error:
        print(f"{error} (logs in {folder})", file=sys.stderr)
        return 1
    Console().print(shown)
    return int(num_wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
