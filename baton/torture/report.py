"""The report on a run, for people."""

from __future__ import annotations

import re
import statistics
from collections import Counter
from typing import TYPE_CHECKING

from baton_serve.baton.cluster.cluster import REDIS
from baton_serve.baton.torture.faults.nemesis import by_kind
from baton_serve.baton.torture.run import RunPlan
from baton_serve.baton.torture.verdict.validate import Verdict, during

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from rich.console import Console
    from rich.table import Table

    from baton_serve.baton.torture.records import Attempt, Fault
    from baton_serve.baton.torture.run import RunOutcome

#: The most wrong attempts that are shown in full, and the most lines of each log.
MAX_TOLD, MAX_LINES = 5, 20


def print_report(outcome: RunOutcome, console: Console, folder: Path) -> None:
    """Print the command, the table, and the parts of the logs about what is wrong. The logs are in ``folder``."""
    console.print(command(outcome), markup=False, highlight=False, soft_wrap=True)
    console.print(tables(outcome))
    for attempt, why in outcome.wrong[:MAX_TOLD]:
        console.print("\n".join(timeline(outcome, attempt, why, folder)), markup=False, highlight=False, soft_wrap=True)
    if len(outcome.wrong) > MAX_TOLD:
        console.print(f"{len(outcome.wrong) - MAX_TOLD} more wrong answers are not told here.")
    for name in suspects(outcome):
        console.print("\n".join(story(outcome, name, folder)), markup=False, highlight=False, soft_wrap=True)
    console.print(ending(outcome, folder), markup=False, soft_wrap=True)


def ending(outcome: RunOutcome, folder: Path) -> str:
    """The last line of the report."""
    text = "Nothing is wrong." if outcome.good else f"Something is wrong. Logs: {folder}"
    if outcome.interrupted is None:
        return text
    return f"Interrupted by {outcome.interrupted.name}; of what had ended by then: {text}"


def tables(outcome: RunOutcome) -> Table:
    """One row for each number."""
    from rich.table import Table

    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for name, value in rows(outcome):
        table.add_row(name, value)
    return table


def command(outcome: RunOutcome) -> str:
    """The command that runs it again, with the same questions, pauses, schedule and lengths of stops.

    A due fault is put off while its kind has no possible victim, and the victim depends on which processes live: two
    runs are similar, not equal.
    """
    plan = outcome.plan
    limits = {"--kills": plan.kills, "--minutes": plan.seconds / 60}
    until = " ".join(f"{flag} {limit:g}" for flag, limit in limits.items() if limit < float("inf"))
    shape = plan.shape.flags
    if plan.num_clients != RunPlan.num_clients:
        shape += f" --clients {plan.num_clients}"
    return f"baton torture {until} --seed {plan.seed} {shape}"


def rows(outcome: RunOutcome) -> Iterator[tuple[str, str]]:
    """The name and the value of each row. Pure."""
    kills = [fault for fault in outcome.faults if fault.is_kill]
    verdicts = outcome.verdicts
    if outcome.interrupted is not None:
        yield "interrupted by", outcome.interrupted.name
    yield "seconds of storm", f"{outcome.storm_s:.0f}"
    yield "processes killed", str(len(kills))
    yield from ((f"  {name}", str(count)) for name, count in by_kind(kills).items())
    others = by_kind(fault for fault in outcome.faults if not fault.is_kill)
    yield from ((name, str(count)) for name, count in others.items())
    yield "requests", str(len(outcome.judged))
    for verdict in Verdict:
        yield f"  {verdict}", str(verdicts[verdict])
        if verdict is Verdict.ALLOWED:
            yield from ((f"    {code}: {why}", str(count)) for (why, code), count in allowed(outcome).items())
    yield "questions left out, whose answers hang on rounding", str(outcome.num_unclear)
    yield "processes that ended by themselves", told(outcome.surprises)
    none = "none" if outcome.looked or outcome.interrupted is None else "not looked at"
    yield "blocks, leases or requests left over", told((f"{name}: {what}" for name, what in outcome.held.items()), none)
    yield "processes that have grown", told((f"{name}: {what}" for name, what in outcome.grown.items()), none)
    for cause, times_ms in outcome.costs.items():
        middle, most = statistics.median(times_ms), max(times_ms)
        yield f"blocks free after {cause}", f"{middle:.0f} ms (p50), {most:.0f} ms (max) of {len(times_ms)}"


def allowed(outcome: RunOutcome) -> dict[tuple[str, str], int]:
    """How many errors each rule has allowed, by the rule's reason and the error's code."""
    counts = Counter(
        (judgement.why, str(attempt.error["code"]))  # vLLM's own codes are numbers
        for attempt, judgement in outcome.judged
        if judgement.verdict is Verdict.ALLOWED
    )
    return dict(sorted(counts.items()))


def told(lines: Iterable[str], none: str = "none") -> str:
    """The lines, or ``none`` where there are none."""
    return "\n".join(lines) or none


def fault_list(outcome: RunOutcome) -> Iterator[str]:
    """One line for each fault: seconds since the storm began, the process, and how long until the fault was over."""
    yield f"Faults ({len(outcome.faults)}):"
    yield from (f"  {_at(fault, outcome)}" for fault in outcome.faults)


def _at(fault: Fault, outcome: RunOutcome) -> str:
    lasted_s = fault.ended_s - fault.began_s
    undone = "not undone" if lasted_s == float("inf") else f"undone after {lasted_s:.3f} s"
    return f"{fault.began_s - outcome.began_s:9.3f} s  {fault}, {undone}"


def timeline(outcome: RunOutcome, attempt: Attempt, why: str, folder: Path) -> list[str]:
    """What happened to one attempt: the faults meanwhile, and the first lines of each log that name its id."""
    began_s = attempt.began_s
    lines = [
        f"{attempt.request_id or 'a request without an id'} of question {attempt.question} at {attempt.router}: {why}",
        f"  {attempt.ending} after {attempt.ended_s - began_s:.3f} s, {len(attempt.answer.text)} characters",
    ]
    lines += [
        f"  {fault.began_s - began_s:+.3f} s to {fault.ended_s - began_s:+.3f} s: {fault}"
        for fault in during(attempt, outcome.faults, outcome.plan.shape.late_s)
    ]
    for path in sorted(folder.glob("*.log")) if attempt.request_id else []:
        about = [line for line in path.read_text(errors="replace").splitlines() if attempt.request_id in line]
        lines += [f"  {path.stem}: {line}" for line in about[:MAX_LINES]]
        if len(about) > MAX_LINES:
            lines.append(f"  {path.stem}: ... and {len(about) - MAX_LINES} lines more")
    return lines


def suspects(outcome: RunOutcome) -> list[str]:
    """The processes that ended by themselves, hold something or have grown; for a rank, its worker."""
    told = "\n".join([*outcome.surprises, *outcome.held, *outcome.grown])
    return [name for name in (*outcome.plan.shape.specs, REDIS) if re.search(rf"\b{name}\b", told)]


def story(outcome: RunOutcome, name: str, folder: Path) -> list[str]:
    """The faults of one process, and the end of its log."""
    lines = [f"{name}: what was done to it since the storm began, and the last lines of its log"]
    lines += [f"  {_at(fault, outcome)}" for fault in outcome.faults if fault.name == name]
    path = folder / f"{name}.log"
    log = path.read_text(errors="replace").splitlines() if path.exists() else []
    return lines + [f"  {line}" for line in log[-MAX_LINES:]]
