"""``python -m bench.engine``: Baton's engine beside vLLM on CPUs, on models with random weights."""

from __future__ import annotations

import argparse
import asyncio
import shutil
import signal
import sys
from collections.abc import Coroutine
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, TypeVar

from baton_serve.baton.processes.child import ChildDiedError
from baton_serve.baton.processes.vllm.program import VllmError, VllmProgram, find_vllm
from baton_serve.core.process.signals import on_signals
from bench.client import AnswerError
from bench.engine import contexts, setups
from bench.engine.result import summary, table
from bench.engine.rounds import Cell, measure
from bench.models.sized import model_folder
from bench.report import command
from bench.report.model import Report

T = TypeVar("T")

TITLE = "The engine beside vLLM"
HOW = (
    "Llamas with random weights and a vocabulary of 1,536 tokens, served by one worker of Baton and by one server of "
    "vLLM over HTTP, without a router. The model computes on one thread or two; the HTTP side may use what is free. "
    "vLLM has its threads bound, tcmalloc and Intel's OpenMP preloaded where they are installed, as its documentation "
    "recommends, and is started twice, compiled and eager: in each cell the one counts that was faster in a first run. "
    "Only one server computes at a time, the others are stopped. Streams decode after prompts of 16 tokens. The trace "
    "is 24 requests of many lengths that arrive as a Poisson process, over a quarter longer than the slower server "
    "needs for all of them at once; its rate is one over the mean latency. Ratios are of neighbouring runs."
)
ABOUT_CONTEXTS = (
    "How the time of a decode step grows with its context, measured in a rank without HTTP. Where it grows as the "
    "bytes do that the attention reads, the last column of the table stays the same."
)


def main() -> int:
    """Measure, print, and write the report."""
    given = _parser().parse_args()
    try:
        cells = asyncio.run(until_terminated(_measure(given, _vllm(given.vllm))))
    except asyncio.CancelledError:
        return 128 + signal.SIGTERM
    except (VllmError, ChildDiedError, AnswerError) as error:
        print(f"bench.engine: {error}", file=sys.stderr)
        return 1
    lengths = contexts.measure(given.runs)
    about = summary(cells, len(setups.ALL))
    tables, plots = [table(cells), contexts.table(lengths)], [contexts.plot(lengths)]
    command.finish(Report(TITLE, _command(given), [HOW, about, ABOUT_CONTEXTS], tables, plots), given.report)
    return 0


async def until_terminated(work: Coroutine[Any, Any, T]) -> T:
    """Await ``work``, which SIGTERM cancels: servers that are stopped would not notice the end of this process.

    Raises CancelledError.
    """
    task = asyncio.ensure_future(work)
    with on_signals(lambda number: task.cancel(), (signal.SIGTERM,)):
        return await task


def _vllm(given: str | None) -> VllmProgram | None:
    """The vLLM to compare with; None if none was named and there is none on PATH. Raises VllmError."""
    if given is None and shutil.which("vllm") is None:
        print("bench.engine: no vLLM on PATH and none given with --vllm; measuring Baton alone", file=sys.stderr)
        return None
    return find_vllm(given)


def _command(given: argparse.Namespace) -> str:
    options = ["--few"] if given.few else []
    options += [f"--setup {str(setup).replace(' ', ',')}" for setup in given.setup or ()]
    return " ".join(("python -m bench.engine --vllm FOLDER", *options))


def _parser() -> argparse.ArgumentParser:
    parser = command.parser("bench.engine", __doc__)
    parser.add_argument("--vllm", help=command.VLLM_HELP)
    parser.add_argument("--few", action="store_true", help="each model, type and number of threads once")
    parser.add_argument(
        "--setup", action="append", type=setups.by_name, metavar="SIZE,DTYPE,THREADS", help="such as 50M,bfloat16,2"
    )
    return parser


async def _measure(given: argparse.Namespace, vllm: VllmProgram | None) -> list[Cell]:
    folder = Path(mkdtemp(prefix="baton-bench-engine-"))
    print(f"logs are in {folder}", file=sys.stderr)
    cells: list[Cell] = []
    for setup in given.setup or (setups.FEW if given.few else setups.ALL):
        model_folder(setup.size)
        cells += await measure(setup, vllm, given.runs, folder, lambda text: print(text, flush=True))
    return cells


if __name__ == "__main__":
    sys.exit(main())
