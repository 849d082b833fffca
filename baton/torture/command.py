"""``baton torture``: from the command line to the exit code."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from baton.child import ChildDiedError
from baton.embedded_redis import EmbeddedRedisError
from baton.output import say
from baton.torture.reference import ReferenceError
from baton.torture.report import print_report
from baton.torture.storm import Outcome, Plan, StormError, storm

if TYPE_CHECKING:
    from rich.console import Console


def torture(plan: Plan, report: Path | None) -> int:
    """Run it and print what came of it; 0 when nothing is wrong, else 1."""
    folder = Path(tempfile.mkdtemp(prefix="baton-torture-"))
    try:
        outcome = asyncio.run(storm(plan, folder, lambda line: say(line, sys.stdout)))
    except KeyboardInterrupt:
        return 130
    except (ChildDiedError, EmbeddedRedisError, ReferenceError, StormError) as error:
        print(f"baton: {error} (logs in {folder})", file=sys.stderr)
        return 1
    _print(outcome, report, folder)
    return 0 if outcome.good else 1


def _print(outcome: Outcome, report: Path | None, folder: Path) -> None:
    from rich.console import Console

    def write(console: Console) -> None:
        print_report(outcome, console, folder)

    write(Console(width=None if sys.stdout.isatty() else 160))
    if report is not None:
        with report.open("w", encoding="utf-8") as file:
            write(Console(file=file, width=160))
