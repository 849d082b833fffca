"""What the rounds of each router come to: judged answers, sums, quantiles, and a table. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from bench.report.model import Table
from bench.report.spread import quantile
from bench.vllm.round import Round, Seen


class Verdict(StrEnum):
    """What became of one request."""

    EXACT = "exact"
    #: Text that the right answer does not begin with, whether the client stayed to the end or not.
    WRONG = "wrong"
    #: No whole answer, though the client waited for it.
    FAILED = "failed"
    LEFT = "left"


def judge(seen: Seen, right: str) -> Verdict:
    """Compare what a client saw with the right answer."""
    if not right.startswith(seen.text):
        return Verdict.WRONG
    if seen.left:
        return Verdict.LEFT
    if seen.error or not seen.complete:
        return Verdict.FAILED
    return Verdict.EXACT if seen.text == right else Verdict.WRONG


@dataclass(frozen=True)
class RoundResult:
    """One round in numbers. Latencies, milliseconds, are of clients that came, and of events, before D stalled."""

    verdicts: Counter[Verdict]
    counts: dict[str, float]
    ttft_ms: list[float]
    itl_ms: list[float]
    #: Time to the first token of all clients that got one.
    ttft_all_ms: list[float]


def result_of(done: Round, right: Mapping[int, str]) -> RoundResult:
    """The numbers of a round."""
    first = [(one.pieces_s[0], 1e3 * one.until_s(0)) for one in done.seen if one.pieces_s]
    gaps = (gap for one in done.seen for gap in pairwise(one.pieces_s) if gap[1] < done.stalled_s)
    return RoundResult(
        verdicts=Counter(judge(one, right[one.asked.number]) for one in done.seen),
        counts=done.counts,
        ttft_ms=[ttft_ms for at_s, ttft_ms in first if at_s < done.stalled_s],
        itl_ms=[(later - sooner) * 1e3 for sooner, later in gaps],
        ttft_all_ms=[ttft_ms for _, ttft_ms in first],
    )


def _count(name: str) -> Callable[[Sequence[RoundResult]], str]:
    return lambda rounds: f"{sum(one.counts[name] for one in rounds):.0f}"


def _verdict(verdict: Verdict) -> Callable[[Sequence[RoundResult]], str]:
    return lambda rounds: str(sum(one.verdicts[verdict] for one in rounds))


def _pooled(field: str, percent: int) -> Callable[[Sequence[RoundResult]], str]:
    return lambda rounds: f"{quantile([value for one in rounds for value in getattr(one, field)], percent):.0f}"


#: The rows of the table: what it is, and how it is computed from the rounds of one router.
ROWS: tuple[tuple[str, Callable[[Sequence[RoundResult]], str]], ...] = (
    ("requests", lambda rounds: str(sum(one.verdicts.total() for one in rounds))),
    ("exact answers", _verdict(Verdict.EXACT)),
    ("**wrong tokens**, answers", _verdict(Verdict.WRONG)),
    ("failed answers", _verdict(Verdict.FAILED)),
    ("clients that left", _verdict(Verdict.LEFT)),
    ("hand-offs that D read", _count("reads")),
    ("**expired leases**", _count("expired")),
    ("**reads after the lease's end** (P's counter)", _count("notified_late")),
    ("lines `Potentially invalid KV blocks` in P's log", _count("stale_lines")),
    ("TTFT p50 ms, before D stalls", _pooled("ttft_ms", 50)),
    ("TTFT p99 ms, before D stalls", _pooled("ttft_ms", 99)),
    ("ITL p50 ms, before D stalls", _pooled("itl_ms", 50)),
    ("ITL p99 ms, before D stalls", _pooled("itl_ms", 99)),
    ("TTFT p50 ms, whole round", _pooled("ttft_all_ms", 50)),
    ("TTFT p99 ms, whole round", _pooled("ttft_all_ms", 99)),
)


def table(results: Mapping[str, Sequence[RoundResult]]) -> Table:
    """A column for each router."""
    rows = [[what, *(row(rounds) for rounds in results.values())] for what, row in ROWS]
    return Table("Routers in front of vLLM", ["", *results], rows)
