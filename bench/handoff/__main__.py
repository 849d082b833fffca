"""``python -m bench.handoff``: Baton's hand-off beside stock vLLM's, in rounds, the systems in turn."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from baton_serve.baton.processes.child import ChildDiedError
from baton_serve.baton.processes.vllm.program import VllmError, find_vllm
from bench.client import AnswerError, Client
from bench.handoff.result import report
from bench.handoff.rounds import NUM_TOKENS, Cell, Results, fill, make_cells, run_cell, run_first_tokens
from bench.handoff.systems import System, baton, others_resting, vllm
from bench.models.words import make_model
from bench.report import command
from bench.report.arguments import counts
from bench.report.model import Report

NO_VLLM = "vLLM was not measured: {0}."


def main() -> int:
    """Measure, print the tables, and write the report if asked for."""
    given = _parser().parse_args()
    try:
        if given.vllm is not None:
            find_vllm(given.vllm)  # now, not after minutes
        with TemporaryDirectory(prefix="baton-bench-handoff-") as folder:
            done = asyncio.run(_measure(given, Path(folder)))
    except (ChildDiedError, AnswerError, VllmError) as error:
        print(f"bench.handoff: {error}", file=sys.stderr)
        return 1
    command.finish(done, given.report)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = command.parser("bench.handoff", __doc__, "rounds")
    parser.add_argument("--vllm", help=command.VLLM_HELP)
    parser.add_argument("--tokens", type=counts, default="100,1500,6000", help="of prompts (default %(default)s)")
    parser.add_argument("--at-once", type=counts, default="1,16", help="requests at a time (default %(default)s)")
    parser.add_argument(
        "--device", default="auto", help="of Baton's workers (default %(default)s: the GPU, if there is one)"
    )
    return parser


async def _measure(given: argparse.Namespace, folder: Path) -> Report:
    model = folder / "model"
    make_model(model)
    cells = make_cells(given.tokens, given.at_once)
    largest = [max(given.tokens) + NUM_TOKENS] * max(given.at_once)
    remarks: list[str] = []
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(Client())
        ours = await stack.enter_async_context(baton(model, folder, largest, given.device))
        systems: list[System] = [ours]
        try:
            systems.append(await stack.enter_async_context(vllm(given.vllm, model, folder)))
        except VllmError as error:
            remarks.append(NO_VLLM.format(error))
        _say("the servers serve")
        for system in systems:
            with others_resting(systems, system):
                await fill(client, system, cells)
        _say("the prefill workers know the prompts")
        results = Results()
        num_found = await ours.num_found()
        for number in range(given.runs):
            await _round(client, systems, cells, number, results)
            with others_resting(systems, ours):
                for num_tokens in given.tokens:
                    first = await run_first_tokens(client, ours, num_tokens, number)
                    results.ttft.setdefault(num_tokens, []).append(first)
            _say(f"round {number + 1} of {given.runs} is done")
        if await ours.num_found() > num_found:
            raise AnswerError("D had some of the prompts in its own cache, so hand-offs without a read were measured")
    typed = "python -m bench.handoff" + " --vllm FOLDER" * (given.vllm is not None)
    return report(results, typed + f" --device {given.device}" * (given.device != "auto"), remarks)


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


async def _round(
    client: Client, systems: Sequence[System], cells: Sequence[Cell], number: int, results: Results
) -> None:
    for index, cell in enumerate(cells):
        for system in systems[:: 1 if (number + index) % 2 == 0 else -1]:
            with others_resting(systems, system):
                results.add(cell, system.name, await run_cell(client, system, cell, number))


if __name__ == "__main__":
    sys.exit(main())
