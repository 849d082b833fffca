"""``baton top``: frames of fixed data, rates of fixed pages, and where looks come from."""

from __future__ import annotations

import io
import json
import os
import pty
import select
import sys
import termios
import threading
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from scripted_router import TOKEN, ScriptedRouter, request, serving, worker

from baton.admin_client import AdminClient, AdminError
from baton.cli import main
from baton.settings import AdminSettings
from baton.top.feed import watch
from baton.top.frame import bar, frame
from baton.top.look import Look, look_at
from baton.top.rates import Rates, Reading, between, quantile, read
from protocol.worker import Role
from router.http_client import HttpUpstream
from router.metrics import Metrics, RouterCollector
from router.peers.cleanup import Cleanup
from router.request import State

if TYPE_CHECKING:
    from collections.abc import Iterator

HELD = request("held-request-1", State.HELD, age_ms=5000.0, lease_remaining_ms=4321, phases_ms={"prefilling": 1000.0})
DECODING = request("decoding-request", age_ms=9000.0, decode_worker="decode-worker-1")
ANSWER = {
    "requests": [HELD, DECODING],
    "workers": [worker("prefill-worker-1"), worker("decode-worker-1", Role.DECODE, draining=True, occupied=8)],
}


def drawn(look: Look, rates: Rates | None = None, **options: Any) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=220).print(frame(look, rates or Rates(), "http://router", **options))
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_a_frame_shows_speed_counts_workers_and_requests() -> None:
    lines = drawn(look_at(ANSWER), Rates(requests_per_s=2.0, ttft_p50_s=0.025))
    assert "2.0 requests/s" in lines[0]
    assert "TTFT p50 25 ms  p95 -" in lines[0]
    assert "1 held (oldest 4.0 s)" in lines[1]
    prefill = next(line for line in lines if line.startswith("prefill-"))
    assert "2/8" in prefill
    assert "████████──────────── " + " 15 pinned 5 leased 20 cached 60 free" in prefill
    assert "draining" in next(line for line in lines if line.startswith("decode-w"))
    oldest, next_one = lines[-2:]
    assert oldest.startswith("decoding")
    assert "queued 1 ms  prefilling 20 ms  decoding 9.0 s" in oldest
    assert next_one.split()[:6] == ["held-req", "held", "5.0", "s", "4.3", "s"]
    assert "prefilling 1.0 s  held 4.0 s" in next_one


def test_a_frame_fits_the_screen() -> None:
    look = look_at({"requests": [request(f"{n:016}") for n in range(50)], "workers": ANSWER["workers"]})
    lines = drawn(look, height=20, problem="gone\nagain")
    assert len(lines) <= 20
    assert lines[-2:] == ["and 40 more", "gone?again"]


def test_a_live_snapshot_gives_the_same_frame() -> None:
    snapshot = json.loads(json.dumps(ANSWER))
    for item in snapshot["workers"]:
        states = ("free", "cached", "pinned", "leased")
        item["blocks"] = {state: item.pop(f"{state}_blocks") for state in states} | {"total": 100}
    snapshot["counts"] = {"held": 1, "decoding": 1}
    assert drawn(look_at(snapshot)) == drawn(look_at(ANSWER))


def test_a_look_at_several_routers_names_who_does_not_answer() -> None:
    history = {"requests_per_s": [1.0, 7.0], "ttft": {"p50_ms": [30.0, None], "p95_ms": [40.0, 250.0]}}
    routers = [
        {"id": "aaaaaaaaaaaa", "is_this": True, "error": None, "num_requests": 2},
        {"id": "bbbbbbbbbbbb", "is_this": False, "error": "no answer in 2 s", "num_requests": None},
    ]
    look = look_at({**ANSWER, "routers": routers, "history": history})
    lines = drawn(look, Rates(requests_per_s=2.0))
    assert "7.0 requests/s" in lines[0] and "TTFT p50 -  p95 250 ms" in lines[0]
    assert lines[2] == "routers  aaaaaaaaaaaa 2 live   bbbbbbbbbbbb no answer: no answer in 2 s"
    assert len(drawn(look, height=12)) <= 12
    alone = drawn(look_at({**ANSWER, "routers": routers[:1]}))
    assert not any(line.startswith("routers") for line in alone)


def test_a_worker_that_told_of_no_blocks_has_none() -> None:
    static = worker("static", free_blocks=0, cached_blocks=0, pinned_blocks=0, leased_blocks=0)
    assert look_at({"workers": [static]}).workers[0].blocks == {}


@given(st.lists(st.integers(0, 100), min_size=1, max_size=4), st.integers(0, 200), st.integers(1, 30))
def test_a_bar_has_its_width(parts: list[int], total: int, width: int) -> None:
    made = bar({f"color({n})": part for n, part in enumerate(parts)}, total, width)
    assert len(made) == width


def test_a_little_is_seen_in_a_bar() -> None:
    assert bar({"red": 1}, 1000, 10).plain == "█" + "─" * 9


def page(metrics: Metrics) -> str:
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry()
    states = dict.fromkeys(State, 0)
    registry.register(RouterCollector(metrics, lambda: states, dict, dict, Cleanup(HttpUpstream(1.0), tuple), tuple))
    return generate_latest(registry).decode()


def test_rates_are_read_from_what_the_router_exports() -> None:
    metrics = Metrics()
    before = read(page(metrics), 10.0)
    metrics.outcomes["done", ""] += 6
    metrics.outcomes["failed", "x"] += 2
    for _ in range(40):
        metrics.itl.observe(0.004)
    metrics.ttft.observe(0.15)
    rates = between(before, read(page(metrics), 12.0))
    assert (rates.requests_per_s, rates.failed_per_s, rates.chunks_per_s) == (4.0, 1.0, 20.0)
    assert rates.itl_p50_s == pytest.approx(0.0035)
    assert rates.ttft_p50_s == pytest.approx(0.15)


def test_a_router_that_was_started_anew_has_no_rate() -> None:
    assert between(Reading(1.0, ended=5), Reading(2.0, ended=1)) == Rates()


def test_a_quantile_beyond_all_bounds_is_the_last_one() -> None:
    assert quantile({1.0: 0, float("inf"): 3}, 0.5) == 1.0
    assert quantile({1.0: 0, float("inf"): 0}, 0.5) is None


@pytest.fixture
def router(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedRouter]:
    scripted = ScriptedRouter()
    scripted.requests, scripted.workers = ANSWER["requests"], ANSWER["workers"]
    with serving(scripted):
        monkeypatch.setenv("BATON_ADMIN_URL", scripted.url)
        monkeypatch.setenv("BATON_ADMIN_TOKEN", TOKEN)
        yield scripted


def first_look(router: ScriptedRouter) -> Look | AdminError:
    client = AdminClient(AdminSettings.model_validate({"url": router.url, "admin_token": TOKEN}))
    stop, told = threading.Event(), list[Look | AdminError]()

    def tell(look: Look | AdminError) -> None:
        told.append(look)
        stop.set()

    watch(client, tell, stop)
    return told[0]


def test_looks_come_from_the_stream(router: ScriptedRouter) -> None:
    snapshot = {"requests": [HELD], "workers": [], "counts": {"held": 1}}
    router.live = [f"event: snapshot\ndata: {json.dumps(snapshot)}\n\n"]
    assert first_look(router) == look_at(snapshot)


@pytest.mark.parametrize("live", [None, ["data: {}\n\n"]])
def test_without_the_stream_the_router_is_asked(live: list[str] | None, router: ScriptedRouter) -> None:
    router.live = live
    assert first_look(router) == look_at(ANSWER)


def test_once_prints_one_frame(router: ScriptedRouter, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--once"]) == 0
    shown = capsys.readouterr().out
    assert router.url in shown
    assert "held-req" in shown


def test_without_a_terminal_it_says_so(router: ScriptedRouter, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top"]) == 2
    assert "use --once" in capsys.readouterr().err


@pytest.mark.parametrize("key", [b"q", b"\x03"])
def test_a_key_ends_it_and_the_terminal_is_as_before(key: bytes, router: ScriptedRouter) -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ |= {"TERM": "xterm", "COLUMNS": "200", "LINES": "40"}
        os.execv(sys.executable, [sys.executable, "-m", "baton", "top"])
    before = termios.tcgetattr(terminal)
    try:
        shown = read_until(terminal, b"held-req")
        assert termios.tcgetattr(terminal) != before
        os.write(terminal, key)
        shown += read_until(terminal, b"")
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert shown.count(b"\x1b[?1049h") == shown.count(b"\x1b[?1049l") == 1
        assert b"Traceback" not in shown
        assert termios.tcgetattr(terminal) == before
    finally:
        os.close(terminal)


def read_until(terminal: int, mark: bytes) -> bytes:
    """What the program prints until the mark; with an empty one, until it ends."""
    shown = b""
    while not mark or mark not in shown:
        assert select.select([terminal], [], [], 20)[0], f"nothing more after {shown!r}"
        try:
            shown += os.read(terminal, 65536)
        except OSError:  # Linux: nobody has the other side open
            break
    assert mark in shown
    return shown
