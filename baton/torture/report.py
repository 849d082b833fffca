"""What came of a run, for people."""

from __future__ import annotations

import re
import statistics
from collections import Counter
from typing import TYPE_CHECKING

from baton.cluster.cluster import REDIS
from baton.torture.nemesis import by_kind
from baton.torture.run import RunPlan
from baton.torture.validate import Verdict, during

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from rich.console import Console
    from rich.table import Table

    from baton.torture.records import Attempt, Fault
    from baton.torture.run import RunOutcome

#: Wrong attempts that are told with everything known about them, and the lines of each log at most.
MAX_TOLD, MAX_LINES = 5, 20


def print_report(outcome: RunOutcome, console: Console, folder: Path) -> None:
    """The tables, and the lines of the logs that are about what is wrong."""
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
    """The last line."""
    text = "Nothing is wrong." if outcome.good else f"Something is wrong. Logs: {folder}"
    if outcome.interrupted is None:
        return text
    return f"Interrupted by {outcome.interrupted.name}; of what had ended by then: {text}"


def tables(outcome: RunOutcome) -> Table:
    """All numbers, one row each."""
    from rich.table import Table

    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for name, value in rows(outcome):
        table.add_row(name, value)
    return table


def command(outcome: RunOutcome) -> str:
    """What runs it again. The questions, the pauses, the shuffled cards and how long each stop lasts are then the same;
    a card is put off while nobody of its kind can be hurt, and who is hit depends on who lives.
    """
    plan = outcome.plan
    limits = {"--kills": plan.kills, "--minutes": plan.seconds / 60}
    until = " ".join(f"{flag} {limit:g}" for flag, limit in limits.items() if limit < float("inf"))
    shape = f"--prefill {plan.shape.prefill} --decode {plan.shape.decode} --routers {plan.shape.routers}"
    if plan.shape.tps != {1}:
        shape += f" --prefill-tp {plan.shape.prefill_tp} --decode-tp {plan.shape.decode_tp}"
    if plan.num_clients != RunPlan.num_clients:
        shape += f" --clients {plan.num_clients}"
    return f"baton torture {until} --seed {plan.seed} {shape}"


def rows(outcome: RunOutcome) -> Iterator[tuple[str, str]]:
    """Name and value of everything that is counted. Pure."""
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
    """How many errors each rule excused with each code."""
    counts = Counter(
        (judgement.why, attempt.error["code"])
        for attempt, judgement in outcome.judged
        if judgement.verdict is Verdict.ALLOWED
    )
    return dict(sorted(counts.items()))


def told(lines: Iterable[str], none: str = "none") -> str:
    """One line each, or that there are none."""
    return "\n".join(lines) or none


def fault_list(outcome: RunOutcome) -> Iterator[str]:
    """What was done to whom: seconds since the storm began, and how long until it was undone."""
    yield f"Faults ({len(outcome.faults)}):"
    yield from (f"  {_at(fault, outcome)}" for fault in outcome.faults)


def _at(fault: Fault, outcome: RunOutcome) -> str:
    lasted_s = fault.ended_s - fault.began_s
    undone = "not undone" if lasted_s == float("inf") else f"undone after {lasted_s:.3f} s"
    return f"{fault.began_s - outcome.began_s:9.3f} s  {fault}, {undone}"


def timeline(outcome: RunOutcome, attempt: Attempt, why: str, folder: Path) -> list[str]:
    """What happened to one attempt: what was done meanwhile, and the first lines of each log that name it."""
    began_s = attempt.began_s
    lines = [
        f"{attempt.request_id or 'a request without an id'} of question {attempt.question} at {attempt.router}: {why}",
        f"  {attempt.ending} after {attempt.ended_s - began_s:.3f} s, {len(attempt.answer.text)} characters",
    ]
    lines += [
        f"  {fault.began_s - began_s:+.3f} s to {fault.ended_s - began_s:+.3f} s: {fault}"
        for fault in during(attempt, outcome.faults)
    ]
    for path in sorted(folder.glob("*.log")) if attempt.request_id else []:
        about = [line for line in path.read_text(errors="replace").splitlines() if attempt.request_id in line]
        lines += [f"  {path.stem}: {line}" for line in about[:MAX_LINES]]
        if len(about) > MAX_LINES:
            lines.append(f"  {path.stem}: ... and {len(about) - MAX_LINES} lines more")
    return lines


def suspects(outcome: RunOutcome) -> list[str]:
    """The processes that ended by themselves, hold something or have grown; a rank's worker for the rank."""
    told = "\n".join([*outcome.surprises, *outcome.held, *outcome.grown])
    return [name for name in (*outcome.plan.shape.specs, REDIS) if re.search(rf"\b{name}\b", told)]


def story(outcome: RunOutcome, name: str, folder: Path) -> list[str]:
    """What was done to one process, and the end of its log."""
    lines = [f"{name}: what was done to it since the storm began, and the last lines of its log"]
    lines += [f"  {_at(fault, outcome)}" for fault in outcome.faults if fault.name == name]
    path = folder / f"{name}.log"
    log = path.read_text(errors="replace").splitlines() if path.exists() else []
    return lines + [f"  {line}" for line in log[-MAX_LINES:]]
