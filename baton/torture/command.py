"""``baton torture``: from the command line to the exit code."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from baton_serve.baton.cluster.cluster import Cluster
from baton_serve.baton.processes.child import ChildDiedError
from baton_serve.baton.processes.embedded_redis import EmbeddedRedisError
from baton_serve.baton.processes.output import say
from baton_serve.baton.torture.clients.reference import NoReferenceError
from baton_serve.baton.torture.report import fault_list, print_report
from baton_serve.baton.torture.run import RunError, RunOutcome, RunPlan, run
from baton_serve.core.process.signals import on_signals

if TYPE_CHECKING:
    from rich.console import Console

#: Exit status when the command line asks for what cannot be done.
EXIT_USAGE = 2
#: A shell's exit status of a process that a signal has ended, less the signal's number.
EXIT_SIGNAL = 128


def torture(plan: RunPlan, report: Path | None) -> int:
    """Carry out the plan and print the report; returns the exit status.

    It is 0 when nothing is wrong, 1 when something is wrong or the run could not be carried out, 2 when the report
    cannot be written, 130 or 143 when SIGINT or SIGTERM has ended the run.
    """
    try:
        copy = None if report is None else report.open("w", encoding="utf-8")
    except OSError as error:
        print(f"baton: cannot write {report}: {error.strerror}", file=sys.stderr)
        return EXIT_USAGE
    with copy or contextlib.nullcontext():
        return _torture(RunOutcome(plan), copy)


def _torture(outcome: RunOutcome, copy: TextIO | None) -> int:
    """Do the work of ``torture``. The logs are removed unless something is wrong."""
    folder = Path(tempfile.mkdtemp(prefix="baton-torture-"))
    try:
        asyncio.run(_until_interrupted(outcome, Cluster(folder, outcome.plan.shape.specs)))
    except (ChildDiedError, EmbeddedRedisError, NoReferenceError, RunError) as error:
        if outcome.interrupted is None:
            _say_why(f"baton: {error} (logs in {folder})", copy)
            return 1
    _print(outcome, copy, folder)
    if outcome.good:
        shutil.rmtree(folder, ignore_errors=True)
    if outcome.interrupted is not None:
        return EXIT_SIGNAL + outcome.interrupted
    return 0 if outcome.good else 1


async def _until_interrupted(outcome: RunOutcome, cluster: Cluster) -> None:
    """Carry out the run. The first signal ends it in order, and is noted; the second ends it at once.

    Raises what ``run`` raises.
    """
    running = asyncio.create_task(run(outcome, cluster, lambda line: say(line, sys.stdout)), name="torture")

    def interrupt(number: signal.Signals) -> None:
        if outcome.interrupted is not None:
            _end_at_once(cluster, number)
        outcome.interrupted = number
        say(f"{number.name}: ending all processes; a second one ends at once", sys.stdout)
        running.cancel()

    with on_signals(interrupt):
        try:
            await running
        except asyncio.CancelledError:
            if outcome.interrupted is None:
                raise


def _end_at_once(cluster: Cluster, number: signal.Signals) -> None:
    cluster.abandon()
    shutil.rmtree(cluster.folder, ignore_errors=True)
    os._exit(EXIT_SIGNAL + number)


def _say_why(line: str, copy: TextIO | None) -> None:
    print(line, file=sys.stderr)
    if copy is not None:
        copy.write(f"{line}\n")


def _print(outcome: RunOutcome, copy: TextIO | None, folder: Path) -> None:
    from rich.console import Console

    def write(console: Console) -> None:
        print_report(outcome, console, folder)

    write(Console(width=None if sys.stdout.isatty() else 160))
    if copy is not None:
        write(Console(file=copy, width=160))
        copy.writelines(f"{line}\n" for line in fault_list(outcome))
