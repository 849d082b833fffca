"""``baton up`` with real processes: what it starts, and that nothing of it is ever left."""

from __future__ import annotations

import json
import os
import re
import signal
import urllib.request
from functools import partial
from pathlib import Path

import pytest
import redis

from tests.kits.baton.up_process import StartUp, UpProcess, wait_for_end


def missing_file(up: UpProcess) -> Path:
    """Its own, whoever else writes into the folder: two may have it as their ``--log-dir``."""
    return up.log_dir / f"missing-{up.pid}.json"


def test_the_screen_has_a_url_that_serves(start_up: StartUp, model_dir: str, free_port: int) -> None:
    up = start_up("--model", model_dir, "--port", str(free_port), "--prefill", "2")
    screen = up.until_ready()
    url = f"http://127.0.0.1:{free_port}"
    assert f"Baton serves stand-in on {url}/v1" in screen
    assert f"curl -N {url}/v1/chat/completions" in screen
    assert f"logs   {up.log_dir}" in screen
    assert sorted(path.name for path in up.log_dir.iterdir()) == [
        "decode-1.log",
        missing_file(up).name,
        "prefill-1.log",
        "prefill-2.log",
        "redis.log",
        "router.log",
    ]
    with urllib.request.urlopen(f"{url}/v1/models") as response:
        assert response.status == 200


@pytest.mark.parametrize("how", ["ctrl-c", *(pytest.param(how, marks=pytest.mark.slow) for how in ("term", "hangup"))])
def test_a_stop_is_in_order_and_leaves_nothing(ready_up: StartUp, how: str) -> None:
    up = ready_up("--decode", "2")
    assert len(up.pids()) == 6  # up, redis, router, one prefill worker, two decode workers
    stop = {
        "ctrl-c": up.ctrl_c,
        "term": partial(up.signal, signal.SIGTERM),
        "hangup": partial(up.signal, signal.SIGHUP),
    }
    stop[how]()
    assert up.finish() == (0, "")
    assert up.stopped() == ["router", "decode", "decode", "prefill"]
    assert up.pids() == {}
    assert list(up.temporary.iterdir()) == []


def test_a_stop_while_loading_leaves_nothing(start_up: StartUp, model_dir: str) -> None:
    up = start_up("--model", model_dir, "--port", "0", STAND_IN_PREFILL="silent")
    up.until_line("ready on")
    up.stop_well()


@pytest.mark.slow
def test_a_child_that_ignores_sigterm_is_killed(ready_up: StartUp) -> None:
    up = ready_up("--stop-timeout-s", "0.2", STAND_IN_DECODE="deaf")
    up.stop_well()
    assert up.stopped() == ["router", "prefill"]


@pytest.mark.slow
def test_a_second_ctrl_c_does_not_wait(ready_up: StartUp) -> None:
    up = ready_up("--stop-timeout-s", "3600", STAND_IN_ROUTER="deaf")
    up.ctrl_c()
    up.until_line("stopping")
    up.stop_well()


@pytest.mark.slow
def test_who_dies_during_the_stop_is_not_started_again(ready_up: StartUp) -> None:
    up = ready_up("--stop-timeout-s", "3600", STAND_IN_ROUTER="deaf")
    up.ctrl_c()
    up.until_line("stopping")
    dies = up.pid_of("--role prefill")
    os.kill(dies, signal.SIGKILL)
    wait_for_end([dies])
    os.kill(up.pid_of("router"), signal.SIGKILL)
    assert "again" not in up.rest_of_output()
    assert up.finish() == (0, "")
    assert up.stopped() == ["decode"]


def test_sigkill_of_up_leaves_nothing(ready_up: StartUp) -> None:
    up = ready_up()
    pids = list(up.pids())
    up.signal(signal.SIGKILL)
    wait_for_end(pids)
    assert up.finish()[0] == -signal.SIGKILL
    assert up.pids() == {}


@pytest.mark.slow
def test_a_second_start_works_at_once(start_up: StartUp, model_dir: str, free_port: int) -> None:
    for _ in range(2):
        up = start_up("--model", model_dir, "--port", str(free_port))
        up.until_ready()
        up.ctrl_c()
        assert up.finish() == (0, "")


def test_a_worker_that_cannot_start_is_one_line(start_up: StartUp, model_dir: str) -> None:
    up = start_up("--model", model_dir, "--port", "0", STAND_IN_FAILING="decode-1")
    assert up.finish() == (1, f"baton: decode-1: there is no such architecture (logs in {up.log_dir})\n")
    assert up.pids() == {}


@pytest.mark.parametrize("name", ["decode-1", pytest.param("router", marks=pytest.mark.slow)])
def test_a_part_that_dies_later_is_started_again(ready_up: StartUp, name: str) -> None:
    part = {"decode-1": "--role decode", "router": "router --host"}[name]
    up = ready_up()
    before = up.pids()
    os.kill(killed := up.pid_of(part), signal.SIGKILL)
    assert up.until_line(name) == f"{name}: was ended by SIGKILL; starting it again in 0.2 s\n"
    assert up.until_line(name) == f"{name}: serves again\n"
    assert killed not in up.pids()
    assert set(before) - {killed} < set(up.pids())
    url = re.search(r"on (http://127\.0\.0\.1:\d+)/v1", up.screen)
    assert url is not None
    with urllib.request.urlopen(f"{url[1]}/v1/models") as response:
        assert response.status == 200
    up.stop_well()


@pytest.mark.slow
def test_a_redis_that_dies_is_started_again_at_its_place(ready_up: StartUp) -> None:
    up = ready_up()
    (socket_path,) = up.temporary.glob("baton-redis-*/redis.sock")
    os.kill(up.pid_of("redis-server"), signal.SIGKILL)
    assert up.until_line("redis") == "redis: was ended by SIGKILL; starting it again in 0.2 s\n"
    assert up.until_line("redis") == "redis: serves again, empty\n"
    with redis.Redis(unix_socket_path=str(socket_path)) as client:
        assert client.ping()
    up.stop_well()
    assert list(up.temporary.iterdir()) == []


@pytest.mark.slow
def test_a_worker_that_does_not_come_back_ends_everything(ready_up: StartUp, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    up = ready_up(STAND_IN_BROKEN=str(broken))
    broken.touch()
    os.kill(up.pid_of("--role decode"), signal.SIGUSR1)
    assert up.finish() == (1, f"baton: decode-1: it broke (logs in {up.log_dir})\n")
    assert up.stopped() == ["router", "prefill"]
    assert up.pids() == {}


@pytest.mark.slow
def test_one_of_several_that_cannot_start_is_done_without(ready_up: StartUp) -> None:
    up = ready_up("--decode", "2", STAND_IN_FAILING="decode-2")
    assert "decode-2   failed: there is no such architecture; starting it again in " in up.screen
    assert "with 1 prefill worker and 1 decode worker\n" in up.screen
    assert "not up yet, and tried again from time to time: decode-2: there is no such architecture\n" in up.screen
    assert json.loads(missing_file(up).read_text()) == ["decode-2"]
    assert f"--missing-file {missing_file(up)}" in up.pids()[up.pid_of("router --host")]
    up.stop_well()
    assert up.stopped() == ["router", "decode", "prefill"]


@pytest.mark.slow
def test_a_stop_says_what_it_waits_for(ready_up: StartUp) -> None:
    up = ready_up("--stop-timeout-s", "3600", STAND_IN_DECODE="deaf")
    up.ctrl_c()
    assert "decode-1, prefill-1; Ctrl-C once more kills what is left" in up.until_line("waiting for decode-1")
    up.stop_well()


def test_never_ready_is_bounded(start_up: StartUp, model_dir: str) -> None:
    up = start_up("--model", model_dir, "--port", "0", "--start-timeout-s", "0.5", STAND_IN_PREFILL="silent")
    code, errors = up.finish()
    assert code == 1
    told = f"was not ready after 0.5 s (logs in {up.log_dir})\n"
    assert errors in {f"baton: prefill-1: {told}", f"baton: router: {told}"}, "a router needs some time as well"
    assert up.pids() == {}


@pytest.mark.slow
def test_nobody_has_to_read_what_it_prints(start_up: StartUp, model_dir: str, free_port: int) -> None:
    """``baton up | head -1``."""
    up = start_up("--model", model_dir, "--port", str(free_port))
    up.until_line("loading")
    up.close_output()
    up.until_serving("router", "decode", "prefill")
    up.stop_well()
    assert up.stopped() == ["router", "decode", "prefill"]
