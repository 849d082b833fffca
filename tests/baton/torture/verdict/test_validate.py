"""The judge of a fault run finds what is wrong, and excuses only what was done."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from prometheus_client.samples import Sample

from baton_serve.baton.torture.clients.client import Manner, ask_once, make_client, take
from baton_serve.baton.torture.clients.one_stream import SAME, OneStream
from baton_serve.baton.torture.clients.questions import make_questions
from baton_serve.baton.torture.records import AnswerError, Attempt, ClientAnswer, Ending, Fault, Question, TokenLogprob
from baton_serve.baton.torture.report import rows, timeline
from baton_serve.baton.torture.run import RunOutcome, RunPlan
from baton_serve.baton.torture.shape import Shape
from baton_serve.baton.torture.verdict.router_log import note_deaths
from baton_serve.baton.torture.verdict.settle import (
    VLLM_HOLDS,
    Resources,
    grown,
    what_a_router_holds,
    what_is_held,
    what_vllm_holds,
)
from baton_serve.baton.torture.verdict.validate import VLLM_ENGINE_DEAD, Verdict, judge
from baton_serve.workers.worker import PORT_GRACE_S

TOP = {" b": -2.0, " c": -3.0}
EXPECTED = ClientAnswer("a b c d", "length", (10, 4), [TokenLogprob("a", -1.0, 0), TokenLogprob(" b", -2.0, 1, TOP)])
BLOCKS = {"total": 8, "free": 5, "cached": 3, "pinned": 0, "leased": 0, "leases": 0}
USAGE = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3, "prompt_tokens_details": {"cached_tokens": 1}}
LOAD = {"running": 0, "waiting": 0, "reading": 0}


def attempt(ending: Ending = Ending.DONE, *, error: Any = None, **answer: Any) -> Attempt:
    whole = {"text": "a b c d", "finish_reason": "length", "num_tokens": (10, 4), "logprobs": EXPECTED.logprobs}
    seen = ClientAnswer(**(whole if ending is Ending.DONE else {}) | answer)
    return Attempt(0, "router-0", True, 10.0, 12.0, "ab12", 200, ending, seen, error)


def fault(what: str, kind: str, began_s: float, ended_s: float = 99.0, name: str = "", worker_id: str = "") -> Fault:
    return Fault(what, kind, name or f"{kind}-0", began_s, ended_s, worker_id=worker_id)


def error(code: str | int) -> dict[str, Any]:
    return {"message": "It failed.", "type": "server_error", "param": None, "code": code}


def test_the_exact_answer_is_right() -> None:
    assert judge(attempt(), EXPECTED, []).verdict is Verdict.EXACT


@pytest.mark.parametrize(
    "seen",
    [
        {"text": "a b x d"},
        {"text": "a b c"},
        {"text": "a b c d e"},
        {"finish_reason": "stop"},
        {"num_tokens": (10, 5)},
        {"num_tokens": None},
        {"logprobs": EXPECTED.logprobs[:1]},
        {"logprobs": [EXPECTED.logprobs[0], TokenLogprob(" x", -2.0, 1, TOP)]},
        {"logprobs": [EXPECTED.logprobs[0], TokenLogprob(" b", -2.0, 2, TOP)]},
        {"logprobs": [EXPECTED.logprobs[0], TokenLogprob(" b", -2.5, 1, TOP)]},
        {"logprobs": [EXPECTED.logprobs[0], TokenLogprob(" b", -2.0, 1)]},
        {"logprobs": [EXPECTED.logprobs[0], TokenLogprob(" b", -2.0, 1, TOP | {" c": -3.1})]},
        {"logprobs": [EXPECTED.logprobs[0], TokenLogprob(" b", -2.0, 1, TOP | {" x": -2.5})]},
        {"logprobs": [EXPECTED.logprobs[0], TokenLogprob(" b", -2.0, 1, {" b": -2.0})]},
    ],
)
def test_any_difference_is_wrong(seen: dict[str, Any]) -> None:
    assert judge(attempt(**seen), EXPECTED, [fault("kill", "decode", 11.0)]).verdict is Verdict.WRONG


def test_logprobs_may_differ_by_rounding_and_equally_likely_ones_may_change_places() -> None:
    seen = [EXPECTED.logprobs[0], TokenLogprob(" b", -2.001, 1, {" b": -2.001, " x": -3.001})]
    assert judge(attempt(logprobs=seen), EXPECTED, []).verdict is Verdict.EXACT


def test_what_broke_off_has_no_more_logprobs_than_the_whole_answer() -> None:
    seen = [*EXPECTED.logprobs, TokenLogprob(" c", -2.0, 3)]
    assert judge(attempt(Ending.LEFT, text="a b", logprobs=seen), EXPECTED, []).verdict is Verdict.WRONG


@pytest.mark.parametrize("ending", [Ending.LEFT, Ending.ERROR, Ending.BROKEN])
def test_what_came_before_the_end_has_to_be_right_as_well(ending: Ending) -> None:
    faults = [fault("kill", "router", 11.0), *[fault("kill", "decode", 11.0)] * 4]
    right = attempt(ending, text="a b", error=error("upstream_error"))
    wrong = attempt(ending, text="a x", error=error("upstream_error"))
    assert judge(right, EXPECTED, faults).verdict is not Verdict.WRONG
    assert judge(wrong, EXPECTED, faults).verdict is Verdict.WRONG


def test_a_broken_connection_is_excused_by_the_death_of_its_router_and_by_nothing_else() -> None:
    broken = attempt(Ending.BROKEN)
    for own in (fault("kill", "router", 11.0), fault("kill", "router", 12.4), fault("failpoint", "router", 12.4)):
        assert judge(broken, EXPECTED, [own]).verdict is Verdict.ROUTER_DIED
    late = [fault("failpoint", "router", 16.0)]
    assert judge(broken, EXPECTED, late, late_s=5.0).verdict is Verdict.ROUTER_DIED
    assert judge(broken, EXPECTED, late).verdict is Verdict.WRONG
    assert judge(broken, EXPECTED, [fault("kill", "router", 16.0)], late_s=5.0).verdict is Verdict.WRONG
    for other in (
        [fault("failpoint", "router", 18.0)],
        [],
        [fault("kill", "router", 11.0, name="router-1")],
        [fault("kill", "decode", 11.0)],
        [fault("stop", "router", 11.0)],
        [fault("kill", "router", 5.0)],
        [fault("kill", "router", 15.0)],
    ):
        assert judge(broken, EXPECTED, other).verdict is Verdict.WRONG


def test_one_death_excuses_no_error() -> None:
    for code in ("upstream_error", "engine_dead", "worker_deaths", "no_worker"):
        failed = attempt(Ending.ERROR, text="a b", error=error(code))
        for what in ("kill", "stop", "empty"):
            assert judge(failed, EXPECTED, [fault(what, "redis", 11.0)] * 3).verdict is Verdict.WRONG
        for kind in ("prefill", "decode"):
            assert judge(failed, EXPECTED, [fault("kill", kind, 11.0)]).verdict is Verdict.WRONG


@pytest.mark.parametrize(
    ("streamed", "gap_s", "verdict"),
    [(True, 0.5, Verdict.ALLOWED), (True, 20.0, Verdict.WRONG), (False, 20.0, Verdict.ALLOWED)],
)
def test_two_deaths_may_be_the_requests_own_doing(streamed: bool, gap_s: float, verdict: Verdict) -> None:
    """Unless it is a stream, and so far behind the first one that it cannot have been."""
    failed = replace(
        attempt(Ending.ERROR, text="a b", error=error("worker_deaths")),
        streamed=streamed,
        ended_s=11.5 + gap_s,
        deaths=frozenset({"d", "p"}),
    )
    deaths = [fault("kill", "decode", 11.0, worker_id="d"), fault("rank", "prefill", 11.0 + gap_s, worker_id="p")]
    assert judge(failed, EXPECTED, deaths).verdict is verdict
    assert judge(failed, EXPECTED, deaths[:1]).verdict is Verdict.WRONG


def test_a_rank_that_dies_at_a_failpoint_counts_though_its_worker_ends_later() -> None:
    """The run notices that death when the worker ends, whose ports wait for the last answers first."""
    failed = replace(attempt(Ending.ERROR, error=error("worker_deaths")), deaths=frozenset({"d", "p"}))
    noted_s = failed.ended_s + PORT_GRACE_S + 0.5
    deaths = [fault("failpoint", "decode", noted_s, worker_id="d"), fault("kill", "prefill", 11.0, worker_id="p")]
    assert judge(failed, EXPECTED, deaths, late_s=Shape.late_s).verdict is Verdict.ALLOWED
    assert judge(failed, EXPECTED, deaths).verdict is Verdict.WRONG


@pytest.mark.parametrize("own", [set(), {"d"}, {"d", "x"}, {"x", "y"}])
def test_deaths_of_workers_that_did_not_have_the_request_excuse_nothing(own: set[str]) -> None:
    failed = replace(attempt(Ending.ERROR, error=error("worker_deaths")), deaths=frozenset(own))
    deaths = [
        fault("rank", "decode", 11.0, worker_id="d"),
        fault("kill", "decode", 11.1, worker_id="d"),
        fault("kill", "prefill", 11.2, worker_id="p"),
    ]
    assert judge(failed, EXPECTED, deaths).verdict is Verdict.WRONG


def test_the_routers_logs_say_who_died_with_a_request(tmp_path: Path) -> None:
    line = "2026-11-22 02:07:34,464 W baton.router: request {} {} after 4.0 ms on p and d2, /v1/x, resumed 1{}\n"
    (tmp_path / "router-0.log").write_text(line.format("ab12", "failed", ", deaths d1 and d2, decoding: code: 'no'"))
    (tmp_path / "router-1.log").write_text(
        line.format("cd34", "done", ", deaths d3") + line.format("ef56", "failed", ", decoding: code: 'no'")
    )
    attempts = [replace(attempt(), request_id=request_id) for request_id in ("ab12", "cd34", "ef56", "")]
    note_deaths(tmp_path, attempts)
    assert [one.deaths for one in attempts] == [{"d1", "d2"}, {"d3"}, set(), set()]


@pytest.mark.parametrize(
    ("streamed", "count", "verdict"), [(True, 3, Verdict.WRONG), (True, 4, Verdict.ALLOWED), (False, 4, Verdict.WRONG)]
)
def test_only_a_stream_fails_of_a_death_and_only_of_the_fourth(streamed: bool, count: int, verdict: Verdict) -> None:
    failed = replace(attempt(Ending.ERROR, error=error("engine_dead")), streamed=streamed)
    assert judge(failed, EXPECTED, [fault("kill", "decode", 11.0)] * count).verdict is verdict


def test_blocks_are_lost_for_good_with_the_third_p() -> None:
    failed = attempt(Ending.ERROR, error=error("kv_read_failed"))
    deaths = [fault("kill", "prefill", 11.0)] * 3
    assert judge(failed, EXPECTED, deaths).verdict is Verdict.ALLOWED
    assert judge(failed, EXPECTED, [*deaths[1:], fault("kill", "decode", 11.0)]).verdict is Verdict.WRONG


def test_an_error_has_to_be_one_that_clients_can_read() -> None:
    faults = [fault("kill", "decode", 11.0)] * 4
    for bad in ("oops", {"message": "It failed."}, error("upstream_error") | {"message": ""}, error("new_code")):
        assert judge(attempt(Ending.ERROR, text="a", error=bad), EXPECTED, faults).verdict is Verdict.WRONG


def test_silence_is_wrong() -> None:
    assert judge(attempt(Ending.HUNG), EXPECTED, [fault("kill", "decode", 11.0)]).verdict is Verdict.WRONG


@pytest.mark.parametrize("kind", ["router", "prefill", "decode", "redis"])
def test_a_stop_excuses_nothing(kind: str) -> None:
    """Not even that of its router, which the others had given up."""
    for code in ("aborted", "worker_deaths", "upstream_error", "kv_read_failed"):
        failed = attempt(Ending.ERROR, error=error(code))
        assert judge(failed, EXPECTED, [fault("stop", kind, 9.0, 11.0)] * 4).verdict is Verdict.WRONG


def test_tells_what_a_worker_still_holds() -> None:
    state = {"ledger": "ok", "blocks": BLOCKS, "load": LOAD}
    assert what_is_held(state) == ""
    for wrong in (
        {"ledger": "block 3 is nobody's"},
        {"blocks": BLOCKS | {"free": 4, "pinned": 1}},
        {"blocks": BLOCKS | {"leases": 1}},
        {"load": LOAD | {"waiting": 1}},
    ):
        assert what_is_held(state | wrong) != ""


def test_tells_what_a_router_still_holds() -> None:
    state = {"requests": 0, "waiting": 0, "in_flight": {}, "renewed": 0, "tasks": 9}
    assert what_a_router_holds(state) == ""
    for wrong in ({"requests": 1}, {"in_flight": {"d": 1}}, {"renewed": 2}):
        assert what_a_router_holds(state | wrong) != ""


def test_tells_who_has_grown_compared_with_its_own_kind() -> None:
    before = {"decode-0": Resources(40, 10), "decode-0/0": Resources(100, 5), "router-0": Resources(500, 1)}
    assert grown(before, before | {"decode-1": Resources(60, 12)}) == {}
    assert list(grown(before, {"decode-1": Resources(90, 10)})) == ["decode-1"]
    assert list(grown(before, {"decode-1": Resources(40, 10, 50)})) == ["decode-1"]
    assert list(grown(before, {"decode-1/0": Resources(100, 50)})) == ["decode-1/0"]


def test_the_report_counts_and_tells_the_story_of_what_is_wrong(tmp_path: Any) -> None:
    (tmp_path / "router-0.log").write_text("request ab12 failed\nrequest cd34 ended\n")
    outcome = RunOutcome(RunPlan(seed=7, kills=3), faults=[fault("kill", "decode", 11.0, name="decode-1")])
    lost = attempt(Ending.BROKEN)
    outcome.judged = [(each, judge(each, EXPECTED, outcome.faults)) for each in (attempt(), lost)]
    counted = dict(rows(outcome))
    assert (counted["requests"], counted["  the exact answer"], counted["  wrong"]) == ("2", "1", "1")
    assert not outcome.good
    told = "\n".join(timeline(outcome, lost, outcome.wrong[0][1], tmp_path))
    assert "kill decode-1" in told and "router-0: request ab12 failed" in told and "cd34" not in told


def test_the_report_splits_the_errors_that_were_allowed_by_rule_and_code() -> None:
    deaths = [fault("kill", "decode", 11.0, worker_id=str(number)) for number in range(4)]
    outcome = RunOutcome(RunPlan(seed=7, kills=4), faults=deaths)
    codes = "worker_deaths", "engine_dead", "upstream_error", "worker_deaths"
    failed = [attempt(Ending.ERROR, error=error(code)) for code in codes]
    seen = [attempt(), *(replace(one, deaths=frozenset("012")) for one in failed)]
    outcome.judged = [(each, judge(each, EXPECTED, outcome.faults)) for each in seen]
    split = {name: count for name, count in rows(outcome) if name.startswith("    ")}
    assert list(split.values()) == ["1", "1", "2"] and outcome.verdicts[Verdict.ALLOWED] == 4
    assert [name.split(":")[0].strip() for name in split] == ["engine_dead", "upstream_error", "worker_deaths"]


def test_the_same_seed_asks_the_same() -> None:
    assert make_questions(3, 20) == make_questions(3, 20) != make_questions(4, 20)


def test_streams_and_whole_answers_of_both_endpoints_add_up_to_the_same() -> None:
    usage = {"usage": USAGE}
    bodies = [
        [{"choices": [{"text": "ab", "logprobs": None, "finish_reason": "stop"}], **usage}],
        [{"choices": [{"message": {"role": "assistant", "content": "ab"}, "finish_reason": "stop"}], **usage}],
        [
            {"choices": [{"delta": {"role": "assistant", "content": ""}, "finish_reason": None}]},
            {"choices": [{"delta": {"content": "a"}, "finish_reason": None}]},
            {"choices": [{"delta": {"content": "b"}, "finish_reason": None}]},
            {"choices": [{"delta": {}, "finish_reason": "stop"}]},
            {"choices": [], **usage},
        ],
    ]
    for events in bodies:
        answer = ClientAnswer()
        for event in events:
            take(answer, event)
        assert answer == ClientAnswer("ab", "stop", (1, 2))
    with pytest.raises(AnswerError):
        take(ClientAnswer(), {"id": "cmpl"})


def test_the_likeliest_tokens_are_read_from_both_endpoints() -> None:
    chat, completion = ClientAnswer(), ClientAnswer()
    top = [{"token": "\ufffd", "bytes": [byte], "logprob": -float(byte)} for byte in (1, 2)]
    entry = {"token": "a", "bytes": [97], "logprob": -1.0, "top_logprobs": top}
    take(chat, {"choices": [{"delta": {}, "logprobs": {"content": [entry]}, "finish_reason": None}]})
    lists = {"tokens": ["a"], "token_logprobs": [-1.0], "text_offset": [0], "top_logprobs": [{"a": -1.0, "b": -2.0}]}
    take(completion, {"choices": [{"text": "a", "logprobs": lists, "finish_reason": None}]})
    assert chat.logprobs == [TokenLogprob("a", -1.0, None, {"01": -1.0, "02": -2.0})]
    assert completion.logprobs == [TokenLogprob("a", -1.0, 0, {"a": -1.0, "b": -2.0})]


@pytest.mark.parametrize(
    "wrong", [{"total_tokens": 4}, {"prompt_tokens_details": {"cached_tokens": 2}}, {"completion_tokens": None}]
)
def test_a_usage_has_to_add_up(wrong: dict[str, Any]) -> None:
    with pytest.raises(AnswerError):
        take(ClientAnswer(), {"choices": [], "usage": USAGE | wrong})


def test_vllm_may_leave_the_details_of_a_usage_out() -> None:
    answer = ClientAnswer()
    take(answer, {"choices": [], "usage": USAGE | {"prompt_tokens_details": None}})
    assert answer.num_tokens == (USAGE["prompt_tokens"], USAGE["completion_tokens"])


DEAD_ENGINE = error(500) | {"message": f"{VLLM_ENGINE_DEAD}. See stack trace (above) for the root cause."}


@pytest.mark.parametrize("seen", [error("upstream_error"), DEAD_ENGINE])
@pytest.mark.parametrize(("continues", "verdict"), [(False, Verdict.ALLOWED), (True, Verdict.WRONG)])
def test_a_stream_that_cannot_be_continued_may_end_with_its_worker(
    continues: bool, verdict: Verdict, seen: dict[str, Any]
) -> None:
    broken = attempt(Ending.ERROR, text="a b", error=seen)
    deaths = [fault("kill", "decode", 11.0)]
    assert judge(broken, EXPECTED, deaths, continues=continues).verdict is verdict
    assert judge(broken, EXPECTED, [], continues=continues).verdict is Verdict.WRONG
    assert judge(broken, EXPECTED, [fault("kill", "prefill", 11.0)], continues=continues).verdict is Verdict.WRONG


def test_no_death_allows_another_internal_error_of_vllm() -> None:
    failed = attempt(Ending.ERROR, text="a b", error=error(500))
    assert judge(failed, EXPECTED, [fault("kill", "decode", 11.0)], continues=False).verdict is Verdict.WRONG


def test_a_fingerprint_may_be_in_some_events_only() -> None:
    stream = OneStream(chat=True)
    for event in (ROLE | {"system_fingerprint": None}, TEXT, TEXT | {"system_fingerprint": None}):
        stream.take(event)
    with pytest.raises(AnswerError, match="another stream"):
        stream.take(TEXT | {"system_fingerprint": "another"})


def test_what_vllm_holds_is_read_from_its_metrics() -> None:
    free = [Sample(name, {}, 0.0) for name in VLLM_HOLDS]
    assert what_vllm_holds(free) == ""
    held = [*free, Sample("vllm:kv_cache_usage_perc", {"engine": "0"}, 0.25), Sample("process_open_fds", {}, 9.0)]
    assert what_vllm_holds(held) == "vllm:kv_cache_usage_perc: 0.25"


HEAD = {"id": "x", "object": "o", "created": 5, "model": "m", "system_fingerprint": "f", "usage": None}
ROLE = HEAD | {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]}
TEXT = HEAD | {"choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": None}]}
LAST = HEAD | {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
USED = HEAD | {"choices": [], "usage": USAGE}


def read(*events: dict[str, Any]) -> None:
    stream = OneStream(chat=True)
    for event in events:
        stream.take(event)
    stream.end()


def test_one_stream_in_order_is_right() -> None:
    read(ROLE, TEXT, TEXT, LAST, USED)


@pytest.mark.parametrize(
    "events",
    [
        [TEXT, LAST, USED],
        [ROLE, ROLE, LAST, USED],
        *([ROLE, TEXT | {key: 9}, LAST, USED] for key in SAME),
        [ROLE, LAST, TEXT, USED],
        [ROLE, LAST, LAST, USED],
        [ROLE, TEXT, USED, LAST],
        [ROLE, LAST, USED, USED],
        [ROLE, LAST | {"usage": USAGE}, USED],
        [ROLE, TEXT],
        [ROLE, LAST],
        [ROLE, HEAD | {"choices": []}, LAST, USED],
        [ROLE, TEXT | {"choices": TEXT["choices"] * 2}, LAST, USED],
        [ROLE, TEXT | {"choices": [TEXT["choices"][0] | {"index": 1}]}, LAST, USED],
    ],
)
def test_what_no_single_stream_does_is_wrong(events: list[dict[str, Any]]) -> None:
    with pytest.raises(AnswerError):
        read(*events)


@pytest.mark.parametrize(
    ("tail", "ending"),
    [
        ([b"[DONE]"], Ending.DONE),
        ([b"[DONE]", b"[DONE]"], Ending.ERROR),
        ([b"[DONE]", orjson.dumps(TEXT)], Ending.ERROR),
        ([], Ending.BROKEN),
    ],
)
async def test_a_stream_has_one_end_mark_and_nothing_after_it(tail: list[bytes], ending: Ending) -> None:
    async def stream(_: web.Request) -> web.Response:
        events = [*map(orjson.dumps, (ROLE, TEXT, LAST, USED)), *tail]
        return web.Response(body=b"".join(b"data: %b\n\n" % event for event in events))

    app = web.Application()
    app.router.add_post("/v1/chat/completions", stream)
    async with TestServer(app) as server, make_client() as http:
        seen = Attempt(0, "router-0", True, 0.0)
        await ask_once(http, str(server.make_url("")).rstrip("/"), Question(0, True, {}), Manner(), seen)
    assert seen.ending is ending
