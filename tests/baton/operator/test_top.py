"""``baton top``: frames of fixed data, rates of fixed pages, and where looks come from."""

from __future__ import annotations

import io
import json
import os
import pty
import select
import signal
import sys
import termios
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from baton_serve.baton.cli import main
from baton_serve.baton.operator.admin_client import AdminClient, AdminError
from baton_serve.baton.operator.top.feed import watch
from baton_serve.baton.operator.top.frame import frame, share
from baton_serve.baton.operator.top.layout import bar, sparkline
from baton_serve.baton.operator.top.look import Look, look_at
from baton_serve.baton.operator.top.rates import FRESH_STEPS, Rates, rates_of
from baton_serve.baton.settings import AdminSettings
from baton_serve.core.protocol.worker import Role
from baton_serve.router.request.states import State
from tests.kits.baton.scripted_router import TOKEN, ScriptedRouter, request, serving, worker

HELD = request("held-request-1", State.HELD, age_ms=5000.0, lease_remaining_ms=4321, phases_ms={"prefilling": 1000.0})
DECODING = request("decoding-request", age_ms=9000.0, decode_worker="decode-worker-1")
ANSWER = {
    "requests": [HELD, DECODING],
    "workers": [worker("prefill-worker-1"), worker("decode-worker-1", Role.DECODE, draining=True, occupied=8)],
}


HISTORY = {
    "step_s": 2.0,
    "requests_per_s": [1.0, 2.0],
    "failed_per_s": [0.0, 0.5],
    "refused_per_s": [0.0, 0.0],
    "tokens_per_s": [0.0, 130.0],
    "ttft": {"p50_ms": [25.0, None], "p95_ms": [250.0, None], "mean_ms": [30.0, None]},
    "itl": {"p50_ms": [None, 8.0], "p95_ms": [None, 9.0], "mean_ms": [None, 8.0]},
}


def drawn(look: Look, width: int = 220, height: int = 40, problem: str = "") -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width).print(frame(look, "http://router", problem, width, height))
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_a_frame_shows_speed_counts_workers_and_requests() -> None:
    lines = drawn(look_at({**ANSWER, "history": HISTORY}))
    assert "2.0 ended/s   0.5 failed/s   0.0 refused/s   130.0 tokens/s" in lines[0]
    assert "TTFT p50 25 ms  p95 250 ms   ITL p50 8 ms" in lines[0], "of the last seconds in which any was measured"
    assert "1 held (oldest 4.0 s)" in lines[1]
    assert "tokens/s" in lines[2] and lines[2].count("█") == 3
    prefill = next(line for line in lines if line.startswith("prefill-"))
    assert "2/8" in prefill
    assert prefill.split()[-5:] == ["15", "5", "20", "60", "1"], "pinned, leased, cached, free, leases"
    assert "█" * 16 + "─" * 24 in prefill
    assert "draining" in next(line for line in lines if line.startswith("decode-w"))
    oldest, next_one = lines[-2:]
    assert oldest.startswith("decoding")
    assert "queued 1 ms  prefilling 20 ms  decoding 9.0 s" in oldest
    assert next_one.split()[:6] == ["held-req", "held", "5.0", "s", "4.3", "s"]
    assert "prefilling 1.0 s  held 4.0 s" in next_one


@pytest.mark.parametrize(
    ("width", "height", "shown", "left_out"),
    [
        (
            80,
            24,
            ("REQUEST ", "STATE", "AGE", "LEASE LEFT", "TOKENS", "P ", "D ", "MODEL", "PINNED"),
            ("PHASES", "USER"),
        ),
        (120, 40, ("PHASES", "CACHED", "LEASES", "ended/s  "), ()),
        (200, 50, ("PHASES", "USER", "CACHED", "LEASES", "decoding 2.5 s"), ()),
    ],
)
def test_a_frame_fits_the_screen_and_uses_it(
    width: int, height: int, shown: tuple[str, ...], left_out: tuple[str, ...]
) -> None:
    """Ids as they are in earnest, and more of everything than there is room for."""
    hexes = [f"{n:08x}{0:024x}" for n in range(60)]
    pairs = {"prefill_worker": hexes[0], "decode_worker": hexes[1]}
    phases = {"queued": 1.0, "prefilling": 20.0, "held": 1.0, "reading": 100.0}
    requests = [request(each, phases_ms=phases, age_ms=2622.0, user="somebody", **pairs) for each in hexes]
    look = look_at({"requests": requests, "workers": [worker(each) for each in hexes[:4]], "history": HISTORY})
    lines = drawn(look, width, height, problem="gone\nagain")
    assert len(lines) == height and max(map(len, lines)) <= width
    whole = "\n".join(lines)
    assert all(text in whole for text in shown)
    assert not any(text in whole for text in left_out)
    assert ("…" in whole) == (width == 120), "all but the phases is shown whole, or not at all"
    assert all(hexes[n][:8] in whole for n in range(4))
    assert lines[-2].startswith("and ") and lines[-1] == "gone?again"


@pytest.mark.parametrize("num_workers", [0, 3, 40])
@pytest.mark.parametrize("num_requests", [0, 3, 100])
@pytest.mark.parametrize(("width", "height"), [(80, 24), (40, 10), (20, 3), (200, 50)])
def test_a_frame_is_never_larger_than_the_screen(num_workers: int, num_requests: int, width: int, height: int) -> None:
    workers = [worker(f"http://{n}.workers.example.org:8100") for n in range(num_workers)]
    requests = [request(f"{n:032x}", model="模型" * 30, user="u" * 100) for n in range(num_requests)]
    routers = [{"id": f"{n:012x}", "error": "why " * 50, "num_requests": None} for n in range(2)]
    look = look_at({"requests": requests, "workers": workers, "routers": routers, "num_hidden": 5, "history": HISTORY})
    out = io.StringIO()
    Console(file=out, width=width).print(frame(look, "http://router", "broken " * 40, width, height))
    lines = out.getvalue().splitlines()
    assert len(lines) <= height
    assert max(map(cell_len, lines)) <= width
    assert lines[-1].startswith("broken")


def test_where_there_is_little_room_both_tables_have_some() -> None:
    look = look_at({"requests": [request(f"{n:016}") for n in range(50)], "workers": ANSWER["workers"] * 20})
    lines = drawn(look, 80, 24)
    assert lines[-1].startswith("and ") and lines[-1].endswith(" more")
    middle = lines.index("", 5)
    assert lines[middle - 1].startswith("and ") and 8 <= middle <= 16


@given(st.integers(0, 60), st.integers(0, 60), st.integers(0, 60))
def test_lines_are_shared_out(room: int, above: int, below: int) -> None:
    given = share(room, above, below)
    assert sum(given) <= room
    assert sum(given) == min(room, above + below)
    assert given[0] <= above and given[1] <= below


def test_a_live_snapshot_gives_the_same_frame() -> None:
    snapshot = json.loads(json.dumps(ANSWER))
    snapshot["counts"] = {"held": 1, "decoding": 1}
    assert drawn(look_at(snapshot)) == drawn(look_at(ANSWER))


def test_a_look_at_several_routers_names_who_does_not_answer() -> None:
    routers = [
        {"id": "aaaaaaaaaaaa", "is_this": True, "error": None, "num_requests": 2},
        {"id": "bbbbbbbbbbbb", "is_this": False, "error": "no answer in 2 s", "num_requests": None},
    ]
    lines = drawn(look_at({**ANSWER, "routers": routers, "history": HISTORY}))
    assert lines[2] == "routers   aaaaaaaa 2 live   bbbbbbbb no answer: no answer in 2 s"
    alone = drawn(look_at({**ANSWER, "routers": routers[:1]}))
    assert not any(line.startswith("routers") for line in alone)


def test_a_worker_that_has_left_is_shown_as_it_was() -> None:
    gone = request("a" * 32, decode_worker="c" * 32)
    assert " cccccccc " in drawn(look_at({"requests": [gone], "workers": []}))[-1]


def test_a_worker_that_told_of_no_blocks_has_none() -> None:
    static = worker("static", free_blocks=0, cached_blocks=0, pinned_blocks=0, leased_blocks=0)
    assert look_at({"workers": [static]}).workers[0].blocks == {}


@given(st.lists(st.integers(0, 100), min_size=1, max_size=4), st.integers(0, 200), st.integers(1, 30))
def test_a_bar_has_its_width(parts: list[int], total: int, width: int) -> None:
    made = bar({f"color({n})": part for n, part in enumerate(parts)}, total, width)
    assert len(made) == width


def test_a_little_is_seen_in_a_bar() -> None:
    assert bar({"red": 1}, 1000, 10).plain == "█" + "─" * 9


def test_a_line_over_time() -> None:
    assert sparkline([1.0, None, 4.0, 8.0], 6) == "  ▂ ▅█"
    assert sparkline([8.0, 0.0, 0.0], 2) == "▁▁"
    assert sparkline([], 3) == "   "


def test_without_a_history_nothing_is_known() -> None:
    assert rates_of({}) == Rates(series={"ended/s": (), "tokens/s": (), "TTFT p50": ()})
    old = {"ttft": {"p50_ms": [25.0, *[None] * FRESH_STEPS]}, "requests_per_s": [3.0, None]}
    assert (rates_of(old).ttft_p50_ms, rates_of(old).ended_per_s) == (None, None)


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


@pytest.mark.parametrize("streams", [True, False])
def test_once_prints_one_frame(streams: bool, router: ScriptedRouter, capsys: pytest.CaptureFixture[str]) -> None:
    """With numbers, and with what the other routers say: the first snapshot is made before they have been asked."""
    if streams:
        others = [{"id": "a" * 12, "num_requests": 1}, {"id": "b" * 12, "num_requests": None}]
        first = {**ANSWER, "requests": [], "routers": others, "history": HISTORY}
        second = {**first, "requests": ANSWER["requests"], "routers": [{"id": "a" * 12, "num_requests": 2}]}
        router.live = [f"data: {json.dumps(snapshot)}\n\n" for snapshot in (first, second)]
    assert main(["top", "--once"]) == 0
    shown = capsys.readouterr().out
    assert router.url in shown
    assert "held-req" in shown
    assert ("130.0 tokens/s" in shown) == streams


def test_without_a_terminal_it_says_so(router: ScriptedRouter, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top"]) == 2
    assert "use --once" in capsys.readouterr().err


@pytest.mark.parametrize("key", [b"q", b"\x03"])
def test_a_key_ends_it_and_the_terminal_is_as_before(key: bytes, router: ScriptedRouter) -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ |= {"TERM": "xterm", "COLUMNS": "200", "LINES": "40"}
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # it is ignored where the tests run in the background
        os.execv(sys.executable, [sys.executable, "-m", "baton_serve", "top"])
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
