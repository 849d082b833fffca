"""Compares what a client saw with what it should have seen. Pure.

An attempt is right when the client has the whole answer, token for token; or when it has the beginning of the answer
and ``ALLOWED`` has a rule for the error that followed. Everything else is wrong, and one line says why.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from baton_serve.baton.torture.records import Ending

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from baton_serve.baton.torture.records import Attempt, ClientAnswer, Fault, TokenLogprob

#: Log probabilities may differ by this: in another batch sums are rounded in another order (below 1e-4 as measured).
MAX_LOGPROB_DIFFERENCE = 1e-2
#: Seconds: clients and nemesis have one clock, but a client may notice a death a moment after it.
SLACK_S = 0.5
#: How the message of a vLLM server whose engine has died begins; ``code`` is 500 then, as for any bug in it.
VLLM_ENGINE_DEAD = "EngineCore encountered an issue"
#: How many prefills a router tries for one request, and how often it lets a stream migrate: ``max_prefill_attempts``
#: and ``max_resumes``.
MAX_PREFILLS, MAX_RESUMES = 3, 3
#: When two deaths are more seconds apart than this, the stream had time for enough tokens that the first death no
#: longer counts against its request. Redis and a worker may be paused for 5 s each; the rest is for a busy machine.
NO_PROGRESS_S = 15.0


class Verdict(StrEnum):
    """The result of an attempt. Only ``WRONG`` is bad."""

    EXACT = "the exact answer"
    LEFT = "the client left"
    ALLOWED = "an error that the table allows"
    ROUTER_DIED = "its router died, asked again"
    WRONG = "wrong"


@dataclass(frozen=True)
class Rule:
    """Allows errors with these codes if at least ``count`` workers of these kinds died during the request."""

    why: str
    kinds: frozenset[str]
    codes: frozenset[str]
    count: int
    #: Whether the rule allows errors of streams only.
    streamed: bool = False
    #: In a stream, the most seconds from the first to the last of the deaths.
    within_s: float = float("inf")
    #: Whether only those deaths count that the router has counted for this very request.
    own: bool = False
    #: Whether the rule is for streams only that cannot be continued.
    broken: bool = False


WORKERS = frozenset({"prefill", "decode"})
ALLOWED = (
    Rule(
        "it may be what kills workers",
        WORKERS,
        frozenset({"worker_deaths"}),
        count=2,
        within_s=NO_PROGRESS_S,
        own=True,
    ),
    Rule(
        "it has gone on as often as it may",
        WORKERS,
        frozenset({"upstream_error", "engine_dead"}),
        count=MAX_RESUMES + 1,
        streamed=True,
    ),
    Rule(
        "each P that it was given to died",
        frozenset({"prefill"}),
        frozenset({"kv_read_failed"}),
        count=MAX_PREFILLS,
    ),
    Rule(
        "its stream cannot be continued exactly",
        frozenset({"decode"}),
        frozenset({"upstream_error", "engine_dead"}),
        count=1,
        streamed=True,
        broken=True,
    ),
)


@dataclass(frozen=True)
class Judgement:
    """A verdict, and its reason where it is ``ALLOWED`` or ``WRONG``."""

    verdict: Verdict
    why: str = ""


def judge(
    attempt: Attempt,
    expected: ClientAnswer,
    faults: Sequence[Fault],
    *,
    continues: bool = True,
    late_s: float = SLACK_S,
) -> Judgement:
    """The judgement on an attempt. ``faults`` has the faults of all processes. ``continues``: another worker goes on
    with its stream when that breaks. ``late_s``: seconds from a death at a failpoint until the run has noticed it.
    """
    faults = during(attempt, faults, late_s)
    wrong = difference(attempt, expected)
    if wrong:
        return Judgement(Verdict.WRONG, wrong)
    match attempt.ending:
        case Ending.DONE:
            return Judgement(Verdict.EXACT)
        case Ending.LEFT:
            return Judgement(Verdict.LEFT)
        case Ending.ERROR:
            return _judge_error(attempt, faults, continues)
        case Ending.BROKEN:
            own = [fault for fault in faults if fault.name == attempt.router and fault.is_kill]
            if own:
                return Judgement(Verdict.ROUTER_DIED)
            return Judgement(Verdict.WRONG, "the connection broke, and its router had not died")
        case Ending.HUNG:
            return Judgement(Verdict.WRONG, f"nothing came any more, for {attempt.ended_s - attempt.began_s:.0f} s")


def _judge_error(attempt: Attempt, faults: Sequence[Fault], continues: bool) -> Judgement:
    shape = error_shape(attempt.error)
    if shape:
        return Judgement(Verdict.WRONG, shape)
    code = attempt.error["code"]
    if code == 500 and attempt.error["message"].startswith(VLLM_ENGINE_DEAD):
        code = "engine_dead"
    for rule in ALLOWED:
        if code in rule.codes and not (rule.broken and continues) and _applies(rule, attempt, faults):
            return Judgement(Verdict.ALLOWED, rule.why)
    text = f"{attempt.status} {code}: {attempt.error['message']}"
    return Judgement(Verdict.WRONG, f"no rule allows {text}")


def _applies(rule: Rule, attempt: Attempt, faults: Sequence[Fault]) -> bool:
    if rule.streamed and not attempt.streamed:
        return False
    deaths = [fault for fault in faults if fault.is_kill and fault.kind in rule.kinds]
    if rule.own:  # a worker may have lost a rank first and been killed then, which counts as one death
        deaths = list({death.worker_id: death for death in deaths if death.worker_id in attempt.deaths}.values())
    times_s = sorted(fault.began_s for fault in deaths)
    spans_s = [last_s - first_s for first_s, last_s in zip(times_s, times_s[rule.count - 1 :], strict=False)]
    return bool(spans_s) and (not attempt.streamed or min(spans_s) <= rule.within_s)


def during(attempt: Attempt, faults: Sequence[Fault], late_s: float) -> list[Fault]:
    """The faults while the attempt was under way: kills during it, and stops that had not ended when it began."""
    first_s = attempt.began_s - SLACK_S
    return [
        fault
        for fault in faults
        if fault.began_s <= attempt.ended_s + (late_s if fault.what == "failpoint" else SLACK_S)
        and (fault.began_s if fault.is_kill else fault.ended_s) >= first_s
    ]


def error_shape(error: object) -> str:
    """What is wrong with the shape of an error object, as OpenAI's clients read it; empty when nothing is."""
    if not isinstance(error, dict):
        return f"not an error object: {str(error)[:200]}"
    if not {"message", "type", "param", "code"} <= error.keys():
        return f"an error object without all of its keys: {error}"
    if not (isinstance(error["message"], str) and error["message"] and isinstance(error["type"], str)):
        return f"an error object without a message or a type: {error}"
    return ""


def difference(attempt: Attempt, expected: ClientAnswer) -> str:
    """How the client's answer differs from the expected one, or from its beginning if the client's broke off; empty if
    it does not.
    """
    whole = attempt.ending is Ending.DONE
    if len(attempt.answer.others) > len(expected.others) or (
        whole and len(attempt.answer.others) < len(expected.others)
    ):
        return f"{len(attempt.answer.choices)} choices, not {len(expected.choices)}"
    for index, (seen, one) in enumerate(zip(attempt.answer.choices, expected.choices, strict=False)):
        if wrong := _difference_of_choice(seen, one, whole=whole):
            return f"choice {index}: {wrong}" if expected.others else wrong
    num_tokens, wanted = attempt.answer.num_tokens, expected.num_tokens
    if num_tokens not in ({wanted} if whole else {wanted, None}):
        return f"usage {num_tokens}, not {wanted}"
    return ""


def _difference_of_choice(seen: ClientAnswer, expected: ClientAnswer, *, whole: bool) -> str:
    if seen.text != (expected.text if whole else expected.text[: len(seen.text)]):
        return f"wrong tokens: {_first_difference(seen.text, expected.text)}"
    if seen.finish_reason not in ({expected.finish_reason} if whole else {expected.finish_reason, None}):
        return f"finish reason {seen.finish_reason}, not {expected.finish_reason}"
    if wrong := _difference_of_logprobs(seen.logprobs, expected.logprobs, whole=whole):
        return f"logprobs of {wrong}"
    if wrong := _difference_of_logprobs(seen.prompt_logprobs, expected.prompt_logprobs, whole=whole):
        return f"logprobs of the prompt, of {wrong}"
    return ""


def _difference_of_logprobs(seen: Sequence[TokenLogprob], expected: Sequence[TokenLogprob], *, whole: bool) -> str:
    if len(seen) > len(expected) or (whole and len(seen) < len(expected)):
        return f"{len(seen)} tokens, not {len(expected)}"
    for index, (one, other) in enumerate(zip(seen, expected, strict=False)):
        if not _same(one, other):
            return f"token {index}: {one}, not {other}"
    return ""


def _same(one: TokenLogprob, other: TokenLogprob) -> bool:
    if one.logprob is None or other.logprob is None:
        close = one.logprob is other.logprob
    else:
        close = abs(one.logprob - other.logprob) <= MAX_LOGPROB_DIFFERENCE
    same = (one.token, one.offset) == (other.token, other.offset)
    return close and same and _alike(one.top, other.top) and _alike(other.top, one.top)


def _alike(some: Mapping[str, float], others: Mapping[str, float]) -> bool:
    """Whether each token of ``some`` is among ``others`` too, or is as likely as one of ``others``, which may have
    taken its place.
    """
    return bool(some) == bool(others) and all(
        any(abs(logprob - other) <= MAX_LOGPROB_DIFFERENCE for other in others.values())
        if token not in others
        else abs(logprob - others[token]) <= MAX_LOGPROB_DIFFERENCE
        for token, logprob in some.items()
    )


def _first_difference(seen: str, expected: str) -> str:
    pairs = enumerate(zip(seen, expected, strict=False))
    at = next((index for index, (one, other) in pairs if one != other), min(len(seen), len(expected)))
    return f"from character {at} on {seen[at : at + 40]!r}, not {expected[at : at + 40]!r}"
