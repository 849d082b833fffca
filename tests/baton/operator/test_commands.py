"""The operator's commands against a router that answers as the real one does."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import socket
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import FastAPI
from rich.text import Text

from baton_serve.baton.cli import main
from baton_serve.baton.operator.tables import REQUEST_COLUMNS, request_rows, worker_rows
from baton_serve.core.protocol.worker import Role
from baton_serve.router.admin import admin_router
from baton_serve.router.edge.auth import AdminKeys
from baton_serve.router.request.states import State
from tests.kits.baton.scripted_router import TOKEN, ScriptedRouter, ended, request, serving, worker

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def router(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedRouter]:
    scripted = ScriptedRouter()
    scripted.requests = [request("aaaa000011112222"), request("aaaa999911112222", State.HELD, user="ann")]
    scripted.workers = [worker("prefill-worker-1"), worker("decode-worker-1", Role.DECODE)]
    with serving(scripted):
        monkeypatch.setenv("BATON_ADMIN_URL", scripted.url)
        monkeypatch.setenv("BATON_ADMIN_TOKEN", TOKEN)
        yield scripted


class Anything:
    """Has every attribute; routes are built on it and never called."""

    def __getattr__(self, name: str) -> Anything:
        return self


@pytest.mark.parametrize(
    ("view", "row"), [("RequestView", request("id")), ("EndedRequest", ended("id")), ("WorkerView", worker("id"))]
)
def test_the_real_router_has_the_fields_that_are_shown(view: str, row: dict[str, Any]) -> None:
    api = FastAPI()
    parts: Any = Anything()
    api.include_router(admin_router(parts, parts, parts, parts, AdminKeys(None, reachable=True), only_tls=False))
    assert row.keys() <= api.openapi()["components"]["schemas"][view]["properties"].keys()


def complaint(arguments: list[str], capsys: Capture, code: int = 1) -> str:
    """What a command that fails says, which is one line."""
    assert main(arguments) == code
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("baton: ")
    assert shown.err.count("\n") == 1
    assert TOKEN not in shown.err
    return shown.err


def printed(arguments: list[str], capsys: Capture) -> str:
    """What a command that succeeds prints."""
    assert main(arguments) == 0
    return capsys.readouterr().out


def test_requests_are_a_table(router: ScriptedRouter, capsys: Capture) -> None:
    head, first, second = printed(["requests"], capsys).splitlines()
    assert head.split()[:3] == ["ID", "STATE", "AGE"]
    assert first.split()[:4] == ["aaaa0000", "decoding", "2.5", "s"]
    assert second.split()[:2] == ["aaaa9999", "held"]
    assert second.rstrip().endswith("ann")


def test_requests_that_ended_are_a_table_and_say_why(router: ScriptedRouter, capsys: Capture) -> None:
    done = {"ended_in": None, "code": None, "error": None}
    router.ended = [ended("bbbb000011112222"), ended("bbbb999911112222", State.DONE, **done)]
    _, first, second = printed(["requests", "--ended"], capsys).splitlines()
    assert first.split()[:7] == ["bbbb0000", "failed", "held", "1.5", "s", "2.5", "s"]
    assert first.rstrip().endswith("no_room: No worker had room in time.")
    assert second.split()[:3] == ["bbbb9999", "done", "-"]
    assert json.loads(printed(["requests", "--ended", "failed", "--json"], capsys)) == {
        "ended": router.ended[:1],
        "unreachable_routers": [],
    }
    router.ended.clear()
    assert printed(["requests", "--ended", "failed"], capsys) == "no request is known that failed\n"


@pytest.mark.parametrize("what", ["requests", "workers"])
def test_json_is_what_the_router_said(what: str, router: ScriptedRouter, capsys: Capture) -> None:
    assert main([what, "--json"]) == 0
    others: dict[str, Any] = {"unreachable_routers": []} if what == "requests" else {"lost": []}
    assert json.loads(capsys.readouterr().out) == {what: getattr(router, what), **others}


@pytest.mark.parametrize("what", ["requests", "workers"])
def test_nothing_is_said_in_words(what: str, router: ScriptedRouter, capsys: Capture) -> None:
    setattr(router, what, [])
    assert printed([what], capsys).startswith("no ")


def test_workers_are_a_table(router: ScriptedRouter, capsys: Capture) -> None:
    router.workers[1] |= {"draining": True, "kind": "vllm", "version": "0.32.0"}
    _, first, second = printed(["workers"], capsys).splitlines()
    assert first.split()[1:6] == ["-", "prefill", "up", "baton", "2/8"]
    assert first.split()[9:14] == ["60", "20", "15", "5", "1"]
    assert second.split()[1:7] == ["-", "decode", "draining", "vllm", "0.32.0", "2/8"]


def test_what_is_wrong_with_a_worker_is_below_the_table(router: ScriptedRouter, capsys: Capture) -> None:
    router.workers[1]["problem"] = "It runs without NixlConnector."
    *_, row, line = printed(["workers"], capsys).splitlines()
    assert line == f"{row.split()[0]}: It runs without NixlConnector."


def test_a_lost_worker_is_a_row_with_what_it_had(router: ScriptedRouter, capsys: Capture) -> None:
    was = {
        "name": "decode-1",
        "role": "decode",
        "kind": "baton",
        "models": ["m"],
        "in_flight": 2,
        "running": 3,
        "leased_blocks": 7,
    }
    router.lost = [{"id": "ffff000011112222", "url": "http://d", **was, "gone_at": 1e9}]
    *_, row, line = printed(["workers"], capsys).splitlines()
    assert row.split()[:4] == ["ffff0000", "decode-1", "decode", "lost"]
    what, had = line.split(". ")
    assert re.fullmatch(r"decode-1 ffff0000: It left without draining at 2001-09-[\d :-]+", what)
    assert had == "Last announced: 3 running requests and 7 leased blocks."


@pytest.mark.parametrize("arguments", [["requests"], ["requests", "--json"], ["abort", "--all"]])
def test_whose_share_is_missing_is_said(arguments: list[str], router: ScriptedRouter, capsys: Capture) -> None:
    router.unreachable = ["0123456789ab"]
    assert main(arguments) == 0
    shown = capsys.readouterr()
    assert "aaaa0000" in shown.out
    assert "router 0123456789ab did not answer" in shown.err


def test_rows_say_which_router_has_the_request() -> None:
    rows = request_rows([request("a" * 32), request("b" * 32)])
    titles = [column.title for column in REQUEST_COLUMNS]
    assert [row[titles.index("ROUTER")] for row in rows] == ["a" * 8, "b" * 8]


HEXES = [f"{n:08x}{0:024x}" for n in range(4)]
WHY = "No decode worker had room for this request in the time that it may be held. " * 8


@pytest.fixture
def busy(router: ScriptedRouter) -> ScriptedRouter:
    """Ids as they are in earnest, and the longest of the rest."""
    pairs = {"prefill_worker": HEXES[2], "decode_worker": HEXES[3], "num_tokens": 12345, "user": "somebody"}
    model = "meta-llama/Llama-3.1-8B-Instruct"
    router.requests = [request(each, State.PREFILLING, model=model, **pairs) for each in HEXES[:2]]
    router.ended = [ended(each, State.ABORTED, ended_in="prefilling", model=model, **pairs) for each in HEXES[:2]]
    for each in router.ended:
        each["error"] = WHY.strip()
    blocks = {"free_blocks": 16366, "cached_blocks": 18, "pinned_blocks": 0, "leased_blocks": 0}
    router.workers = [worker(each, draining=True, models=[model], **blocks) for each in HEXES[2:]]
    return router


def on_a_terminal(arguments: list[str], columns: int, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The lines that a command prints on one with so many columns."""
    reader, terminal = pty.openpty()
    with monkeypatch.context() as changed, os.fdopen(terminal, "w") as stdout:
        changed.setenv("COLUMNS", str(columns))
        changed.setattr(sys, "stdout", stdout)
        assert main(arguments) == 0
    shown = b""
    with (
        contextlib.suppress(OSError),
        os.fdopen(reader, "rb", buffering=0) as screen,
    ):  # Linux: nobody has the other side
        while part := screen.read(65536):
            shown += part
    return [Text.from_ansi(line).plain for line in shown.decode().splitlines()]


@pytest.mark.parametrize(
    ("arguments", "columns", "shown", "cut"),
    [
        (["workers"], 80, "ID NAME ROLE STATE ENGINE REQUESTS FREE CACHED MODELS", "MODELS"),
        (
            ["workers"],
            120,
            "ID NAME ROLE STATE ENGINE REQUESTS RUNNING WAITING FREE CACHED PINNED LEASED LEASES MODELS",
            "MODELS",
        ),
        (
            ["workers"],
            200,
            "ID NAME ROLE STATE ENGINE REQUESTS RUNNING WAITING READING FREE CACHED PINNED LEASED LEASES MODELS",
            "",
        ),
        (["requests"], 80, "ID STATE AGE P D TOKENS MODEL USER", "MODEL"),
        (["requests"], 120, "ID STATE AGE P D LEASE LEFT TOKENS ROUTER MODEL USER", "MODEL"),
        (["requests"], 200, "ID STATE AGE P D LEASE LEFT TOKENS ROUTER MODEL USER", ""),
        (["requests", "--ended"], 80, "ID OUTCOME ENDED IN AGO TOOK WHY", "WHY"),
        (["requests", "--ended"], 120, "ID OUTCOME ENDED IN AGO TOOK P D TOKENS USER WHY", "WHY"),
        (["requests", "--ended"], 200, "ID OUTCOME ENDED IN AGO TOOK P D TOKENS ROUTER MODEL USER WHY", "WHY"),
    ],
)
def test_a_table_fits_the_terminal(
    arguments: list[str], columns: int, shown: str, cut: str, busy: ScriptedRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line per row, with whole ids and states; the columns that are shown, and the one that is cut."""
    head, *rows = on_a_terminal(arguments, columns, monkeypatch)
    assert " ".join(head.split()) == shown
    first = 2 if arguments == ["workers"] else 0
    state = {"workers": "draining", "requests": "prefilling", "--ended": "aborted"}[arguments[-1]]
    assert [row.split()[0] for row in rows] == [each[:8] for each in HEXES[first : first + 2]]
    assert all(state in row.split() and len(row) <= columns for row in rows)
    where = head.index(cut) if cut else columns
    assert all("…" not in row[:where] and ("…" in row[where:]) == bool(cut) for row in rows)


@pytest.mark.parametrize("arguments", [["workers"], ["requests"], ["requests", "--ended"]])
def test_ids_and_states_are_whole_on_any_terminal(
    arguments: list[str], busy: ScriptedRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    addresses = [f"http://decode-{n}.decode.inference.svc.cluster.local:8000" for n in range(2)]
    busy.workers = [worker(each, draining=True) for each in addresses]
    for row in on_a_terminal(arguments, 10, monkeypatch)[1:]:
        identity, state = row.split()
        assert identity in {*(each.removeprefix("http://") for each in addresses), *(each[:8] for each in HEXES)}
        assert state in ("draining", "prefilling", "aborted")


def test_an_address_is_whole_where_it_has_room(busy: ScriptedRouter, monkeypatch: pytest.MonkeyPatch) -> None:
    busy.requests[0]["decode_worker"] = "http://10.100.200.250:18000"
    assert "10.100.200.250:18000" in on_a_terminal(["requests"], 80, monkeypatch)[1]


def test_without_a_terminal_everything_is_whole(busy: ScriptedRouter, capsys: Capture) -> None:
    _, first, second = printed(["requests", "--ended"], capsys).splitlines()
    assert first.endswith(f"somebody  no_room: {WHY.strip()}") and len(second) > 600


def test_abort_takes_a_prefix_and_prints_the_id(router: ScriptedRouter, capsys: Capture) -> None:
    assert printed(["abort", "aaaa9"], capsys) == "aaaa999911112222\n"


@pytest.mark.parametrize("answer", ["chatcmpl-aaaa999911112222", "cmpl-aaaa9999"])
def test_a_request_may_be_called_as_its_answer_is(answer: str, router: ScriptedRouter, capsys: Capture) -> None:
    assert printed(["abort", answer], capsys) == "aaaa999911112222\n"


def test_a_silent_router_may_have_the_request_that_is_meant(router: ScriptedRouter, capsys: Capture) -> None:
    """The router that is asked decides on what was typed; the list, which lacks the silent one's share, does not."""
    router.unreachable = ["0123456789ab"]
    assert "502" in complaint(["abort", "aaaa9"], capsys)
    assert router.posts == [("/admin/requests/aaaa9/abort", None)]


def test_one_id_that_is_unclear_does_not_keep_the_others(router: ScriptedRouter, capsys: Capture) -> None:
    assert main(["abort", "aaaa", "bbbb", "aaaa9"]) == 1
    shown = capsys.readouterr()
    assert shown.out == "aaaa999911112222\n"
    assert "409: 'aaaa' is the beginning of 2 requests' ids" in shown.err
    assert "404: No live request has that id" in shown.err


def test_abort_by_filter(router: ScriptedRouter, capsys: Capture) -> None:
    assert (
        printed(["abort", "--state", "held", "--worker", "prefill", "--older-than-s", "1"], capsys)
        == "aaaa999911112222\n"
    )
    assert router.posts == [("/admin/abort", {"state": "held", "worker": "prefill-worker-1", "older_than_s": 1.0})]
    assert "nothing was aborted" in complaint(["abort", "--state", "queued"], capsys)


def test_abort_all(router: ScriptedRouter, capsys: Capture) -> None:
    assert len(printed(["abort", "--all"], capsys).splitlines()) == 2
    assert router.posts == [("/admin/abort", {"all": True})]


@pytest.mark.parametrize(
    "arguments",
    [["abort"], ["abort", "--all", "--state", "held"], ["abort", "a", "--all"], ["abort", "--state", "x"], ["drain"]],
)
def test_wrong_usage_ends_nothing(arguments: list[str], router: ScriptedRouter, capsys: Capture) -> None:
    complaint(arguments, capsys, code=2)
    assert router.posts == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--all", "--user", "bob"], "--all and --user do not combine"),
        (["a", "--all"], "ids and --all do not combine"),
        (["a", "--state", "held", "--older-than-s", "1"], "ids and --state --older-than-s do not combine"),
        ([], "give ids, or --all, or what the requests have in common"),
    ],
)
def test_what_does_not_combine_is_named(
    arguments: list[str], said: str, router: ScriptedRouter, capsys: Capture
) -> None:
    assert said in complaint(["abort", *arguments], capsys, code=2)
    assert router.posts == []


@pytest.mark.parametrize("what", ["drain", "resume"])
def test_drain_and_resume(what: str, router: ScriptedRouter, capsys: Capture) -> None:
    assert printed([what, "deco"], capsys).startswith("decode-worker-1 ")
    assert router.posts == [("/admin/workers/decode-worker-1/" + what, None)]


def test_a_worker_is_called_as_baton_up_calls_it(router: ScriptedRouter, capsys: Capture) -> None:
    router.workers = [worker(f"{number}abc0000", name=f"decode-{number}") for number in (1, 10)]
    assert printed(["drain", "decode-1"], capsys) == "1abc0000 drains\n"
    assert router.posts == [("/admin/workers/1abc0000/drain", None)]
    assert "no worker has an id that begins with 'decode-2', or that name" in complaint(["drain", "decode-2"], capsys)
    router.lost = [{"id": "2abc0000", "name": "decode-2", "gone_at": 1e9}]
    assert "worker 2abc0000 is lost" in complaint(["drain", "decode-2"], capsys)


def test_a_worker_that_cannot_be_told(router: ScriptedRouter, capsys: Capture) -> None:
    router.can_tell = False
    assert "the routers know" in printed(["drain", "deco"], capsys)


def test_a_router_that_cannot_drain(router: ScriptedRouter, capsys: Capture) -> None:
    router.can_drain = False
    assert "has no /admin/workers/decode-worker-1/drain" in complaint(["drain", "deco"], capsys)


def test_a_wrong_token(router: ScriptedRouter, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATON_ADMIN_TOKEN", "wrong")
    assert "refuses the admin token" in complaint(["requests"], capsys)


def test_nobody_there(capsys: Capture) -> None:
    with socket.socket() as taken:  # bound and not listening: nobody else gets the port meanwhile
        taken.bind(("127.0.0.1", 0))
        shown = complaint(["requests", "--url", f"http://127.0.0.1:{taken.getsockname()[1]}"], capsys)
    assert shown.endswith("Connection refused; --url (or BATON_ADMIN_URL) names another router\n")


@pytest.mark.parametrize("name", ["--url", "--port"])
def test_a_router_of_this_machine_is_named_by_its_port(name: str, router: ScriptedRouter, capsys: Capture) -> None:
    port = router.url.rpartition(":")[2]
    assert "decode-w" in printed(["workers", name, port], capsys)


def test_somebody_else_there(capsys: Capture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        assert "did not answer in time" in complaint(["workers", "--url", url, "--timeout-s", "0.05"], capsys)


@pytest.mark.parametrize("address", ["ftp://x", "http://[::1]x", "http://[x]", "http://x]"])
def test_a_wrong_address_is_wrong_usage(address: str, capsys: Capture) -> None:
    shown = complaint(["requests", "--url", address], capsys, code=2)
    assert "--url: the router's address is http(s)://host:port" in shown


def test_an_address_that_is_none_is_one_line(capsys: Capture) -> None:
    assert "is not the URL of a router" in complaint(["workers", "--url", "http://256.1.1.1"], capsys)


def test_clients_cannot_steer_the_terminal() -> None:
    row = request_rows([request("id", user="\x1b[2J[red]\n", model="m\r")])[0]
    assert row[-2:] == ["m?", "?[2J[red]?"]


def test_a_worker_that_is_down_is_down_first() -> None:
    assert worker_rows([worker("w", healthy=False, draining=True)])[0][3] == "down"
