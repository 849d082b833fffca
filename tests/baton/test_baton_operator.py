"""The operator's commands against a router that answers as the real one does."""

from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING, Any

import pytest
from fastapi import FastAPI
from scripted_router import TOKEN, ScriptedRouter, ended, request, serving, worker

from baton.cli import main
from baton.tables import REQUEST_COLUMNS, request_rows, worker_rows
from protocol.worker import Role
from router.admin import admin_router
from router.auth import AdminKeys
from router.request import State

if TYPE_CHECKING:
    from collections.abc import Iterator

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
    ("view", "row"), [("RequestView", request("id")), ("EndedView", ended("id")), ("WorkerView", worker("id"))]
)
def test_the_real_router_has_the_fields_that_are_shown(view: str, row: dict[str, Any]) -> None:
    api = FastAPI()
    parts: Any = Anything()
    api.include_router(admin_router(parts, parts, AdminKeys(None, reachable=True)))
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


def test_requests_are_a_table(router: ScriptedRouter, capsys: Capture) -> None:
    assert main(["requests"]) == 0
    head, first, second = capsys.readouterr().out.splitlines()
    assert head.split()[:3] == ["ID", "STATE", "AGE"]
    assert first.split()[:4] == ["aaaa0000", "decoding", "2.5", "s"]
    assert second.split()[:2] == ["aaaa9999", "held"]
    assert second.rstrip().endswith("ann")


def test_requests_that_ended_are_a_table_and_say_why(router: ScriptedRouter, capsys: Capture) -> None:
    done = {"ended_in": None, "code": None, "error": None}
    router.ended = [ended("bbbb000011112222"), ended("bbbb999911112222", State.DONE, **done)]
    assert main(["requests", "--ended"]) == 0
    _, first, second = capsys.readouterr().out.splitlines()
    assert first.split()[:7] == ["bbbb0000", "failed", "held", "1.5", "s", "2.5", "s"]
    assert first.rstrip().endswith("no_room: No worker had room in time.")
    assert second.split()[:3] == ["bbbb9999", "done", "-"]
    assert main(["requests", "--ended", "failed", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"ended": router.ended[:1], "unreachable_routers": []}
    router.ended.clear()
    assert main(["requests", "--ended", "failed"]) == 0
    assert capsys.readouterr().out == "no request is known that failed\n"


@pytest.mark.parametrize("what", ["requests", "workers"])
def test_json_is_what_the_router_said(what: str, router: ScriptedRouter, capsys: Capture) -> None:
    assert main([what, "--json"]) == 0
    others = {"unreachable_routers": []} if what == "requests" else {}
    assert json.loads(capsys.readouterr().out) == {what: getattr(router, what), **others}


@pytest.mark.parametrize("what", ["requests", "workers"])
def test_nothing_is_said_in_words(what: str, router: ScriptedRouter, capsys: Capture) -> None:
    setattr(router, what, [])
    assert main([what]) == 0
    assert capsys.readouterr().out.startswith("no ")


def test_workers_are_a_table(router: ScriptedRouter, capsys: Capture) -> None:
    router.workers[1]["draining"] = True
    assert main(["workers"]) == 0
    _, first, second = capsys.readouterr().out.splitlines()
    assert first.split()[1:4] == ["prefill", "up", "2/8"]
    assert "60 free 20 cached 15 pinned 5 leased" in first
    assert second.split()[1:3] == ["decode", "draining"]


@pytest.mark.parametrize("arguments", [["requests"], ["requests", "--json"], ["abort", "--all"]])
def test_whose_share_is_missing_is_said(arguments: list[str], router: ScriptedRouter, capsys: Capture) -> None:
    router.unreachable = ["0123456789ab"]
    assert main(arguments) == 0
    shown = capsys.readouterr()
    assert "aaaa0000" in shown.out
    assert "router 0123456789ab did not answer" in shown.err


def test_rows_say_which_router_has_the_request() -> None:
    rows = request_rows([request("a" * 32), request("b" * 32)])
    assert [row[REQUEST_COLUMNS.index("ROUTER")] for row in rows] == ["a" * 8, "b" * 8]


def test_abort_takes_a_prefix_and_prints_the_id(router: ScriptedRouter, capsys: Capture) -> None:
    assert main(["abort", "aaaa9"]) == 0
    assert capsys.readouterr().out == "aaaa999911112222\n"


@pytest.mark.parametrize("answer", ["chatcmpl-aaaa999911112222", "cmpl-aaaa9999"])
def test_a_request_may_be_called_as_its_answer_is(answer: str, router: ScriptedRouter, capsys: Capture) -> None:
    assert main(["abort", answer]) == 0
    assert capsys.readouterr().out == "aaaa999911112222\n"


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
    assert main(["abort", "--state", "held", "--worker", "prefill", "--older-than-s", "1"]) == 0
    assert capsys.readouterr().out == "aaaa999911112222\n"
    assert router.posts == [("/admin/abort", {"state": "held", "worker": "prefill-worker-1", "older_than_s": 1.0})]
    assert "nothing was aborted" in complaint(["abort", "--state", "queued"], capsys)


def test_abort_all(router: ScriptedRouter, capsys: Capture) -> None:
    assert main(["abort", "--all"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
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
    assert main([what, "deco"]) == 0
    assert capsys.readouterr().out.startswith("decode-worker-1 ")
    assert router.posts == [("/admin/workers/decode-worker-1/" + what, None)]


def test_a_worker_that_cannot_be_told(router: ScriptedRouter, capsys: Capture) -> None:
    router.can_tell = False
    assert main(["drain", "deco"]) == 0
    assert "the routers know" in capsys.readouterr().out


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
    assert shown.endswith("Connection refused\n")


def test_somebody_else_there(capsys: Capture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        assert "did not answer in time" in complaint(["workers", "--url", url, "--timeout-s", "0.05"], capsys)


def test_a_wrong_address_is_wrong_usage(capsys: Capture) -> None:
    shown = complaint(["requests", "--url", "ftp://x"], capsys, code=2)
    assert "--url: the router's address is http(s)://host:port" in shown


def test_clients_cannot_steer_the_terminal() -> None:
    row = request_rows([request("id", user="\x1b[2J[red]\n", model="m\r")])[0]
    assert row[-2:] == ["m?", "?[2J[red]?"]


def test_a_worker_that_is_down_is_down_first() -> None:
    assert worker_rows([worker("w", healthy=False, draining=True)])[0][2] == "down"
