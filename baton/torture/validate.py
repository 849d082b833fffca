"""What a client saw against what it should have seen. Pure.

An attempt is right when all of it is, token for token; or when what the client has seen is the beginning of that and
``ALLOWED`` has a rule for the rest. Everything else is wrong, and what makes it wrong is said in a line.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from baton.torture.records import Ending

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from baton.torture.records import Answer, Attempt, Fault, TokenLogprob

#: Log probabilities may differ by this: sums over another batch are rounded in another order (seen: below 1e-4).
MAX_LOGPROB_DIFFERENCE = 1e-2
#: A client's clock and the nemesis' are one, but a client may notice a death a moment after it.
SLACK_S = 0.5
#: Workers refuse requests of a router that was given up for 2 s after the verdict; a busy machine is told of it late.
REFUSED_S = 3.0
#: Workers tried for one leg of a request: the router's ``max_prefill_attempts`` and ``max_decode_attempts``.
MAX_ATTEMPTS = 3


class Verdict(StrEnum):
    """What came of an attempt. The last one is the only bad one."""

    EXACT = "the exact answer"
    LEFT = "the client left"
    ALLOWED = "an error that the table allows"
    ROUTER_DIED = "its router died, asked again"
    WRONG = "wrong"


@dataclass(frozen=True)
class Rule:
    """An error that may be, and why: at least ``count`` faults of these during the request."""

    why: str
    faults: frozenset[tuple[str, str]]
    codes: frozenset[str]
    count: int = 1
    #: Only faults of the router that was asked.
    same_router: bool = False
    #: Seconds after the end of a fault in which a request may still begin.
    lasts_s: float = SLACK_S


def _faults(kinds: Iterable[str], whats: Iterable[str]) -> frozenset[tuple[str, str]]:
    return frozenset((what, kind) for kind in kinds for what in whats)


DEATHS = ("kill", "rank", "failpoint")
#: What a client is told of a worker that failed and that nobody could stand in for.
FAILED = frozenset({"upstream_error", "engine_dead", "kv_read_failed", "worker_unreachable", "no_worker"})
ALLOWED = (
    Rule("as many workers died as are tried", _faults(["prefill", "decode"], DEATHS), FAILED, count=MAX_ATTEMPTS),
    Rule("it may be what kills workers", _faults(["prefill", "decode"], DEATHS), frozenset({"worker_deaths"}), count=2),
    Rule(
        "its router stood still until the others gave it up",
        _faults(["router"], ["stop"]),
        frozenset({"aborted"}),
        same_router=True,
        lasts_s=REFUSED_S,
    ),
)


@dataclass(frozen=True)
class Judgement:
    """A verdict and its reason: a rule's, or what is wrong."""

    verdict: Verdict
    why: str = ""


def judge(attempt: Attempt, expected: Answer, faults: Sequence[Fault]) -> Judgement:
    """What came of an attempt, given everything that was done to anybody."""
    wrong = difference(attempt, expected)
    if wrong:
        return Judgement(Verdict.WRONG, wrong)
    match attempt.ending:
        case Ending.DONE:
            return Judgement(Verdict.EXACT)
        case Ending.LEFT:
            return Judgement(Verdict.LEFT)
        case Ending.ERROR:
            return _judge_error(attempt, faults)
        case Ending.BROKEN:
            own = [fault for fault in during(attempt, faults) if fault.name == attempt.router and fault.is_kill]
            if own:
                return Judgement(Verdict.ROUTER_DIED)
            return Judgement(Verdict.WRONG, "the connection broke, and its router had not died")
        case Ending.HUNG:
            return Judgement(Verdict.WRONG, f"nothing came any more, for {attempt.ended_s - attempt.began_s:.0f} s")


def _judge_error(attempt: Attempt, faults: Sequence[Fault]) -> Judgement:
    shape = error_shape(attempt.error)
    if shape:
        return Judgement(Verdict.WRONG, shape)
    code = attempt.error["code"]
    for rule in ALLOWED:
        if code in rule.codes and _applies(rule, attempt, faults):
            return Judgement(Verdict.ALLOWED, rule.why)
    text = f"{attempt.status} {code}: {attempt.error['message']}"
    return Judgement(Verdict.WRONG, f"no rule allows {text}")


def _applies(rule: Rule, attempt: Attempt, faults: Sequence[Fault]) -> bool:
    found = [fault for fault in during(attempt, faults, rule.lasts_s) if (fault.what, fault.kind) in rule.faults]
    if rule.same_router:
        found = [fault for fault in found if fault.name == attempt.router]
    return len(found) >= rule.count


def during(attempt: Attempt, faults: Sequence[Fault], lasts_s: float = SLACK_S) -> list[Fault]:
    """What was done while the attempt was under way: deaths at that moment, stops also if they lasted into it."""
    first_s, last_s = attempt.began_s - lasts_s, attempt.ended_s + SLACK_S
    return [
        fault
        for fault in faults
        if fault.began_s <= last_s and (fault.began_s if fault.is_kill else fault.ended_s) >= first_s
    ]


def error_shape(error: object) -> str:
    """What is wrong with an error object as OpenAI's clients read it; empty when nothing is."""
    if not isinstance(error, dict):
        return f"not an error object: {str(error)[:200]}"
    if not {"message", "type", "param", "code"} <= error.keys():
        return f"an error object without all of its keys: {error}"
    if not (isinstance(error["message"], str) and error["message"] and isinstance(error["type"], str)):
        return f"an error object without a message or a type: {error}"
    return ""


def difference(attempt: Attempt, expected: Answer) -> str:
    """How what was seen differs from the answer, or from its beginning where it broke off; empty when it does not."""
    seen, whole = attempt.answer, attempt.ending is Ending.DONE
    if seen.text != (expected.text if whole else expected.text[: len(seen.text)]):
        return f"wrong tokens: {_first_difference(seen.text, expected.text)}"
    if seen.finish_reason not in ({expected.finish_reason} if whole else {expected.finish_reason, None}):
        return f"finish reason {seen.finish_reason}, not {expected.finish_reason}"
    if seen.num_tokens not in ({expected.num_tokens} if whole else {expected.num_tokens, None}):
        return f"usage {seen.num_tokens}, not {expected.num_tokens}"
    if whole and len(seen.logprobs) != len(expected.logprobs):
        return f"logprobs of {len(seen.logprobs)} tokens, not {len(expected.logprobs)}"
    for index, (one, other) in enumerate(zip(seen.logprobs, expected.logprobs, strict=False)):
        if not _same(one, other):
            return f"logprobs of token {index}: {one}, not {other}"
    return ""


def _same(one: TokenLogprob, other: TokenLogprob) -> bool:
    close = abs(one.logprob - other.logprob) <= MAX_LOGPROB_DIFFERENCE
    return close and (one.token, one.offset) == (other.token, other.offset)


def _first_difference(seen: str, expected: str) -> str:
    pairs = enumerate(zip(seen, expected, strict=False))
    at = next((index for index, (one, other) in pairs if one != other), min(len(seen), len(expected)))
    return f"from character {at} on {seen[at : at + 40]!r}, not {expected[at : at + 40]!r}"
