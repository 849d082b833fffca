"""What the rounds come to: tables of medians, with what was not measured said in words. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from bench.handoff.rounds import Cell, Results
from bench.report.model import Report, Table
from bench.report.spread import spread

BATON, VLLM = "Baton", "vLLM"
ABOUT = (
    "From the last prefill step of P to the first token that D makes, less one step of D: the time that a client "
    "waits for its second token because two workers and not one compute the answer. A random model of 4.5 million "
    "parameters, whose cache has 4 KiB for a token in float32; one thread each.",
    "It is measured by clients: the time to D's first token, less the time to P's answer when P is asked alone for one "
    "token, less the mean time between D's tokens. P has the prompts in its prefix cache both times, so that "
    "what a prefill takes, which varies by more than a hand-off, does not come into it; D has not. Of several at a "
    "time, all are sent at once, and the mean of all counts.",
    "vLLM's P and D are asked in the way of the small routers in its documentation, but by the client itself, so "
    "there is no router on the way: P with `max_tokens` of 1, then D with P's `kv_transfer_params`. Baton has its "
    "router on the way. Prompts are token ids, so neither D tokenizes. "
    "Where many long prompts are handed over at a time, the steps of those that are done already and the hand-offs of "
    "the others fall together, so the difference can come out far too small there, even below nothing. "
    "Of each system P has one half of the cores and D the other, as if each had a machine; the client and Baton's "
    "router take what is free. vLLM's processes spin while they wait, as they do where people run them, and are "
    "stopped while Baton is measured.",
)


def report(results: Results, command: str, remarks: Sequence[str] = (), more: Sequence[Table] = ()) -> Report:
    """The report. ``remarks`` say what was not measured and why; ``more`` are further tables."""
    tables = [hand_off_table(results), *([first_token_table(results)] if results.ttft else []), *more]
    return Report("The hand-off", command, [*ABOUT, *remarks], tables)


def hand_off_table(results: Results) -> Table:
    """The hand-offs of both, and their ratio in each round."""
    return Table(
        "Hand-off, ms",
        ["prompt tokens, at a time", VLLM, BATON, "Baton / vLLM", "a step of D: vLLM", "Baton"],
        [_row(results, cell) for cell in results.cells],
    )


def _row(results: Results, cell: Cell) -> list[str]:
    vllm, baton = (results.hand_offs_ms(cell, name) for name in (VLLM, BATON))
    ratios = [ours / theirs for ours, theirs in zip(baton, vllm, strict=False) if theirs > 0]
    steps = ([run.step_s * 1e3 for run in results.cells[cell].get(name, ())] for name in (VLLM, BATON))
    return [f"{cell.num_tokens}, {cell.at_once}", *map(spread, (vllm, baton, ratios)), *map(spread, steps)]


def first_token_table(results: Results) -> Table:
    """First tokens with P and D, and with one worker that does both, each behind a router."""
    rows = []
    for num_tokens, rounds in results.ttft.items():
        pair, alone = ([each[index] * 1e3 for each in rounds] for index in (0, 1))
        ratios = [with_d / without for with_d, without in rounds]
        rows.append([str(num_tokens), *map(spread, (pair, alone, ratios))])
    return Table("First token, ms", ["prompt tokens", "P and D", "one worker", "P and D / one worker"], rows)
