"""The comparison with other routers: what clients ask, what they saw, the table, and routers' commands."""

from __future__ import annotations

import sys
from argparse import ArgumentTypeError
from pathlib import Path

import pytest

from bench.client import Client
from bench.router.routers.router import RouterError
from bench.vllm.__main__ import named_command
from bench.vllm.result import Verdict, judge, result_of, table
from bench.vllm.round import Round, Seen, ask
from bench.vllm.routers import BATON, fill, router
from bench.vllm.traffic import Asked, Shape, make_round
from tests.kits.answering import serves

ASKED = Asked(0, 0.0, "p", 4)
VALUES = {name: name.upper() for name in ("port", "prefill", "prefill_side_channel", "decode", "decode_side_channel")}


def test_a_round_is_the_same_for_the_same_seed_and_no_two_prompts_are() -> None:
    shape = Shape(rate=20.0)
    one = make_round(1, shape)
    assert one == make_round(1, shape) != make_round(2, shape)
    assert len({asked.prompt for asked in one}) == len(one)
    assert all(0 < asked.at_s < shape.arrivals_s for asked in one)


def test_clients_leave_after_some_time_or_after_some_events() -> None:
    asked = make_round(1, Shape(rate=50.0, leaving=0.4))
    after_time = sum(one.leaves_after_s is not None for one in asked) / len(asked)
    after_events = sum(one.leaves_after_events is not None for one in asked) / len(asked)
    assert 0.15 < after_time < 0.25
    assert 0.15 < after_events < 0.25
    assert not any(one.leaves_after_s and one.leaves_after_events for one in asked)
    stay = make_round(1, Shape(leaving=0.0))
    assert not any(one.leaves_after_s or one.leaves_after_events for one in stay)


@pytest.mark.parametrize(
    ("seen", "verdict"),
    [
        (Seen(asked=ASKED, text="abc", complete=True), Verdict.EXACT),
        (Seen(asked=ASKED, text="abx", complete=True), Verdict.WRONG),
        (Seen(asked=ASKED, text="ab", complete=True), Verdict.WRONG),
        (Seen(asked=ASKED, text="ax", left=True), Verdict.WRONG),
        (Seen(asked=ASKED, text="ab", left=True), Verdict.LEFT),
        (Seen(asked=ASKED, text="", left=True), Verdict.LEFT),
        (Seen(asked=ASKED, text="ab", error="500"), Verdict.FAILED),
        (Seen(asked=ASKED, text="x", error="500"), Verdict.WRONG),
        (Seen(asked=ASKED, text="abc"), Verdict.FAILED),
    ],
)
def test_an_answer_is_judged(seen: Seen, verdict: Verdict) -> None:
    assert judge(seen, "abc") is verdict


def test_latencies_are_of_events_before_the_stall() -> None:
    early = Seen(1.0, 9.0, [1.5, 1.75, 9.0], "abc", complete=True, asked=ASKED)
    late = Seen(2.0, 9.0, [8.0], "ab", asked=ASKED, error="500")
    result = result_of(Round([early, late], 5.0, {}, idle=True), {0: "abc"})
    assert (result.ttft_ms, result.itl_ms, result.ttft_all_ms) == ([500.0], [250.0], [500.0, 6000.0])
    assert result.verdicts == {"exact": 1, "failed": 1}


def test_the_table_has_a_column_for_each_router_and_sums_its_rounds() -> None:
    counts = {"expired": 2.0, "notified_late": 0.0, "stale_lines": 0.0, "reads": 5.0}
    seen = [Seen(0.0, 2.0, [1.0, 1.5], "abc", complete=True, asked=ASKED)]
    results = [result_of(Round(seen, 9.0, counts, idle=True), {0: "abc"})] * 3
    made = table({"one": results, "other": results[:2]})
    assert made.columns == ["", "one", "other"]
    rows = {name: cells for name, *cells in made.rows}
    assert rows["exact answers"] == ["3", "2"]
    assert rows["**expired leases**"] == ["6", "4"]
    assert rows["TTFT p50 ms, before D stalls"] == ["1000", "1000"]


def test_the_gaps_of_a_command_are_filled() -> None:
    argv = fill(BATON, VALUES)
    assert argv[argv.index("--port") + 1] == "PORT"
    assert argv[argv.index("--redis-url") + 1] == ""
    assert "vllm+PREFILL?side_channel=PREFILL_SIDE_CHANNEL" in argv
    for command in ("x {nothing}", "x 'y", "x {"):
        with pytest.raises(RouterError, match="in braces can stand port, prefill"):
            fill(command, VALUES)


def test_a_router_has_a_name_and_a_command() -> None:
    assert named_command("toy-proxy=python x.py --a=b") == ("toy-proxy", "python x.py --a=b")
    for text in ("python", "=x", "a b=x", "../a=x"):
        with pytest.raises(ArgumentTypeError):
            named_command(text)


async def test_a_router_that_ends_is_not_waited_for(tmp_path: Path) -> None:
    with pytest.raises(RouterError, match="ended with status 3"):
        async with router("gone", [sys.executable, "-c", "raise SystemExit(3)"], 1, tmp_path):
            pass


async def _seen(asked: Asked, answer: bytes) -> Seen:
    """What a client sees of a server that sends this, and then nothing more until the client has gone."""
    async with serves(answer) as url, Client() as client:
        return await ask(client, url, asked)


def _stream(*events: str) -> bytes:
    body = b"".join(f"data: {event}\n\n".encode() for event in events)
    return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body


def _event(text: str) -> str:
    return f'{{"choices": [{{"text": "{text}"}}]}}'


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (_stream(_event("a"), _event(""), _event("b"), "[DONE]"), ("ab", 2, True, "")),
        (b"HTTP/1.1 503 No\r\ncontent-length: 4\r\n\r\nbusy", ("", 0, False, "503 b'busy'")),
    ],
)
async def test_what_a_client_sees(answer: bytes, expected: tuple[str, int, bool, str]) -> None:
    seen = await _seen(ASKED, answer)
    text, num_events, complete, error = expected
    assert (seen.text, len(seen.pieces_s), seen.complete, seen.left) == (text, num_events, complete, False)
    assert error in seen.error
    assert bool(error) == bool(seen.error)


async def test_a_client_leaves_after_some_time_or_events() -> None:
    waits = (
        b"HTTP/1.1 200 OK\r\ncontent-length: 999\r\n\r\n" + _stream(_event("a"), _event("b")).partition(b"\r\n\r\n")[2]
    )
    after_events = await _seen(Asked(0, 0.0, "p", 4, leaves_after_events=1), waits)
    assert (after_events.text, after_events.left, after_events.error) == ("a", True, "")
    after_time = await _seen(Asked(0, 0.0, "p", 4, leaves_after_s=0.2), waits)
    assert (after_time.text, after_time.left, after_time.error) == ("ab", True, "")
