"""What the rounds of each router come to: judged answers, sums, quantiles, and a table. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from enum import StrEnum
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

from bench.report.spread import quantile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from bench.vllm.client import Seen
    from bench.vllm.round import Right, Round


class Verdict(StrEnum):
    """What became of one request."""

    EXACT = "exact"
    #: Text that the right answer does not begin with, whether the client stayed to the end or not.
    WRONG = "wrong"
    #: No whole answer, though the client waited for it.
    FAILED = "failed"
    LEFT = "left"


def judge(seen: Seen, right: Right) -> Verdict:
    """Compare what a client saw with the right answer."""
    if not right.text.startswith(seen.text):
        return Verdict.WRONG
    if seen.left:
        return Verdict.LEFT
    if seen.error or not seen.complete:
        return Verdict.FAILED
    return Verdict.EXACT if seen.text == right.text else Verdict.WRONG


@dataclass(frozen=True)
class RoundResult:
    """One round in numbers. Latencies, milliseconds, are of clients that came, and of events, before D stalled."""

    verdicts: dict[str, int]
    counts: dict[str, float]
    stranded: float
    left_behind: float
    free_after_s: float
    idle: bool
    ttft_ms: list[float]
    itl_ms: list[float]
    #: Time to the first token of all clients that got one.
    ttft_all_ms: list[float]
    errors: list[str]


def result_of(done: Round, right: Mapping[int, Right]) -> RoundResult:
    """The numbers of a round."""
    calm = [one for one in done.seen if one.pieces_s and one.pieces_s[0] < done.stalled_s]
    gaps = (gap for one in done.seen for gap in pairwise(one.pieces_s) if gap[1] < done.stalled_s)
    return RoundResult(
        verdicts=dict(Counter(judge(one, right[one.asked.number]).value for one in done.seen)),
        counts=done.counts,
        stranded=done.stranded,
        left_behind=done.left_behind,
        free_after_s=done.free_after_s,
        idle=done.idle,
        ttft_ms=[1e3 * one.until_s(0) for one in calm],
        itl_ms=[(later - sooner) * 1e3 for sooner, later in gaps],
        ttft_all_ms=[1e3 * one.until_s(0) for one in done.seen if one.pieces_s],
        errors=sorted({one.error for one in done.seen if one.error}),
    )


def _count(name: str) -> Callable[[Sequence[RoundResult]], str]:
    return lambda rounds: f"{sum(one.counts[name] for one in rounds):.0f}"


def _verdict(verdict: Verdict) -> Callable[[Sequence[RoundResult]], str]:
    return lambda rounds: str(sum(one.verdicts.get(verdict.value, 0) for one in rounds))


def _pooled(field: str, percent: int) -> Callable[[Sequence[RoundResult]], str]:
    return lambda rounds: f"{quantile([value for one in rounds for value in getattr(one, field)], percent):.0f}"


def _range(field: str) -> Callable[[Sequence[RoundResult]], str]:
    """Smallest and largest median of a round: how much of a difference is the machine's."""

    def text(rounds: Sequence[RoundResult]) -> str:
        medians = [quantile(values, 50) for one in rounds if len(values := getattr(one, field)) > 1] or [float("nan")]
        return f"{min(medians):.0f} to {max(medians):.0f}"

    return text


#: The rows of the table: what it is, and how it is computed from the rounds of one router.
ROWS: tuple[tuple[str, Callable[[Sequence[RoundResult]], str]], ...] = (
    ("requests", lambda rounds: str(sum(sum(one.verdicts.values()) for one in rounds))),
    ("exact answers", _verdict(Verdict.EXACT)),
    ("**wrong tokens**, answers", _verdict(Verdict.WRONG)),
    ("failed answers", _verdict(Verdict.FAILED)),
    ("clients that left", _verdict(Verdict.LEFT)),
    ("hand-offs that D read", _count("reads")),
    ("**expired leases**", _count("expired")),
    ("**reads after the lease's end** (P's counter)", _count("notified_late")),
    ("lines `Potentially invalid KV blocks` in P's log", _count("stale_lines")),
    ("stranded block-seconds, traffic", lambda rounds: f"{median(one.stranded for one in rounds):.0f}"),
    ("**stranded block-seconds, leavers**", lambda rounds: f"{median(one.left_behind for one in rounds):.0f}"),
    ("seconds until P is free, leavers", lambda rounds: f"{median(one.free_after_s for one in rounds):.1f}"),
    ("TTFT p50 ms, before D stalls", _pooled("ttft_ms", 50)),
    ("the same, of each round", _range("ttft_ms")),
    ("TTFT p99 ms, before D stalls", _pooled("ttft_ms", 99)),
    ("ITL p50 ms, before D stalls", _pooled("itl_ms", 50)),
    ("ITL p99 ms, before D stalls", _pooled("itl_ms", 99)),
    ("TTFT p50 ms, whole round", _pooled("ttft_all_ms", 50)),
    ("TTFT p99 ms, whole round", _pooled("ttft_all_ms", 99)),
)


def table(results: Mapping[str, Sequence[RoundResult]]) -> str:
    """A column for each router, as Markdown."""
    lines = [_line(("", *results)), _line(("---", *("---:" for _ in results)))]
    lines += [_line((what, *(row(rounds) for rounds in results.values()))) for what, row in ROWS]
    return "\n".join(lines)


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def as_json(results: Mapping[str, Sequence[RoundResult]]) -> dict[str, list[dict[str, object]]]:
    """Every round of every router."""
    return {name: [asdict(one) for one in rounds] for name, rounds in results.items()}
