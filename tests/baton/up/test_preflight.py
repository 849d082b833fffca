"""What is refused before anything is started."""

from __future__ import annotations

import io
import socket
import sys
from contextlib import closing
from pathlib import Path

import pytest

from baton_serve.baton.cli import main
from baton_serve.baton.processes.display import LineDisplay
from baton_serve.baton.up.preflight import PreflightError, check_model, check_port, check_redis, check_worker_packages
from baton_serve.baton.up.welcome import Service, welcome
from baton_serve.core.protocol.status import Failed, Progress, Ready
from baton_serve.router.settings import RouterSettings
from tests.kits.redis_servers import Server, WatchedRedis


def test_ports(model_dir: str, capsys: pytest.CaptureFixture[str]) -> None:
    check_port("127.0.0.1", 0)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["up", "--model", model_dir, "--port", str(port)]) == 1
    said = f"baton: cannot listen on 127.0.0.1 port {port}: address already in use; choose another with --port\n"
    assert capsys.readouterr().err == said
    check_port("127.0.0.1", port)


def test_a_redis_that_answers_and_one_that_does_not(redis_url: str) -> None:
    check_redis(redis_url)
    with pytest.raises(PreflightError, match=r"does not answer: .*127.0.0.1:1.*Connection refused") as caught:
        check_redis("redis://:hunter2@127.0.0.1:1/0")
    with pytest.raises(PreflightError, match=r"^redis_url is not understood by the Redis client$"):
        check_redis("redis://:hunter2@127.0.0.1:1/0?no_such_option=1")
    assert "hunter2" not in str(caught.value)


def test_every_url_that_workers_take(tmp_path: Path) -> None:
    with closing(Server(tmp_path, "save ''")) as server:
        check_redis(f"valkey://127.0.0.1:{server.port}/0")
    with WatchedRedis(tmp_path) as watched:
        check_redis(watched.url)
        places = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in watched.sentinels)
        with pytest.raises(PreflightError, match="does not answer: No master found for 'other'") as caught:
            check_redis(f"redis+sentinel://:hunter2@{places}/other/0?sentinel_password=hunter3")
        assert "hunter" not in str(caught.value)


def test_a_redis_in_cluster_mode_is_refused(tmp_path: Path) -> None:
    config = "cluster-enabled yes", f"cluster-config-file {tmp_path / 'nodes.conf'}"
    with closing(Server(tmp_path, *config)) as server, pytest.raises(PreflightError, match="cluster mode"):
        check_redis(f"redis://127.0.0.1:{server.port}")


def test_an_address_that_is_not_ours() -> None:
    with pytest.raises(PreflightError, match=r"cannot listen on 192\.0\.2\.1"):  # TEST-NET-1, nobody's
        check_port("192.0.2.1", 0)
    with pytest.raises(PreflightError, match=r"cannot listen on no\.such\.host\.invalid"):
        check_port("no.such.host.invalid", 0)


@pytest.mark.parametrize("model", ["Qwen/Qwen3-0.6B", "gpt2", "meta-llama/Llama-3.2-1B-Instruct"])
def test_hub_ids_are_no_folders(model: str) -> None:
    assert not check_model(model)


@pytest.mark.parametrize("model", ["/nowhere", "./nowhere", "../nowhere", "~/nowhere", "a/b/c", "a b", ""])
def test_what_is_no_model(model: str) -> None:
    with pytest.raises(PreflightError):
        check_model(model)


def test_folders(tmp_path: Path) -> None:
    with pytest.raises(PreflightError, match=r"has no config\.json"):
        check_model(str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    assert check_model(str(tmp_path))
    with pytest.raises(PreflightError, match="is a file"):
        check_model(str(tmp_path / "config.json"))


def test_lines_without_a_terminal() -> None:
    stream = io.StringIO()
    display = LineDisplay(stream)
    display.show("prefill-1", Progress("loading"))
    display.show("prefill-1", Ready("http://a:1"))
    display.show("decode-1", Ready("http://a:2", worker_id="0123456789abcdef"))
    display.show("router", Failed("why"))
    assert stream.getvalue().splitlines() == [
        "prefill-1  loading",
        "prefill-1  ready on http://a:1",
        "decode-1   ready on http://a:2 as 01234567",
        "router     failed: why",
    ]


def test_who_is_waited_for_is_said_without_a_terminal() -> None:
    stream = io.StringIO()
    display = LineDisplay(stream, ["prefill-1", "decode-1", "router"])
    display.show("prefill-1", Progress("loading the weights"))
    display.show("router", Ready("http://a:1"))
    display.remind()
    assert stream.getvalue().splitlines()[-1] == "waiting for prefill-1 (loading the weights), decode-1 (starting)"
    for name in ("prefill-1", "decode-1"):
        display.show(name, Ready("http://a:2"))
    said = stream.getvalue()
    display.remind()
    assert stream.getvalue() == said


def test_what_workers_need_is_named_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    check_worker_packages()
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setitem(sys.modules, "nixl", None)
    with pytest.raises(PreflightError) as caught:
        check_worker_packages()
    assert str(caught.value) == (
        "a worker needs packages that are not installed (nixl, torch): pip install 'baton-serve[worker]'"
    )


@pytest.mark.parametrize("command", ["up", "worker --model gpt2", "torture"])
def test_commands_that_start_workers_look_for_what_these_need(
    command: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main(command.split()) == 1
    assert capfd.readouterr().err == (
        "baton: a worker needs packages that are not installed (torch): pip install 'baton-serve[worker]'\n"
    )


def test_the_screen_asks_for_keys_and_tokens_without_showing_them() -> None:
    router = RouterSettings.model_validate({"api_keys": ["sesame"], "admin_token": "sesame"})
    screen = welcome(Service("http://h:1", "m", 2, 1, Path("/logs"), router))
    assert "with 2 prefill workers and 1 decode worker\n" in screen
    assert '-H "Authorization: Bearer <API key>"' in screen
    assert "sesame" not in screen
    open_to_all = RouterSettings.model_validate({"host": "0.0.0.0", "allow_anonymous": True})
    assert "admin  off" in welcome(Service("http://h:1", "m", 1, 1, Path("/logs"), open_to_all))
