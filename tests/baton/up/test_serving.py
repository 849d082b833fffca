"""``baton up`` with the demo model: it serves while its workers come, go and die."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Self

import pytest

from tests.kits.baton.up_process import ROOT, RealUpProcess, wait_for_end

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def up(tmp_path: Path) -> Iterator[RealUpProcess]:
    process = RealUpProcess(
        *(tmp_path, "--port", "0", "--routers", "2", "--threads-per-worker", "1"), XDG_RUNTIME_DIR=""
    )
    try:
        yield process
    finally:
        process.kill_everything()


def port_of(up: RealUpProcess) -> int:
    found = re.search(r"http://127\.0\.0\.1:(\d+)/v1", up.until_ready())
    assert found is not None
    return int(found[1])


def ask(port: int) -> str:
    """One request on a connection of its own; empty if it was served, else what went wrong."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    body = {"model": "baton-demo", "prompt": "What is a lease? A lease", "max_tokens": 24, "ignore_eos": True}
    try:
        connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
        response = connection.getresponse()
        answer = json.loads(response.read())
        served = response.status == 200 and answer["usage"]["completion_tokens"] == 24
        return "" if served else f"{response.status} {answer}"
    except (OSError, http.client.HTTPException) as error:
        return repr(error)
    finally:
        connection.close()


class Traffic:
    """Two clients that ask one thing after the other while inside."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._stop = threading.Event()
        self._clients = [threading.Thread(target=self._ask) for _ in range(2)]
        self.failures: list[str] = []
        self.served = 0

    def __enter__(self) -> Self:
        for client in self._clients:
            client.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for client in self._clients:
            client.join()

    def _ask(self) -> None:
        while not self._stop.is_set():
            failure = ask(self._port)
            if failure:
                self.failures.append(failure)
            self.served += not failure


def scale(up: RealUpProcess, *words: str) -> None:
    environ = {**os.environ, "TMPDIR": str(up.temporary), "PYTHONPATH": str(ROOT), "XDG_RUNTIME_DIR": ""}
    subprocess.run([sys.executable, "-m", "baton_serve", "scale", *words], env=environ, check=True, capture_output=True)


def router_pids(up: RealUpProcess) -> list[int]:
    return [pid for pid, command in up.pids().items() if "--group" in command]


@pytest.mark.slow
def test_no_request_fails_while_workers_come_and_go(up: RealUpProcess) -> None:
    port = port_of(up)
    with Traffic(port) as traffic:
        scale(up, "prefill=2", "decode=2")
        grown = traffic.served
        scale(up, "prefill=1", "decode=1")
    assert traffic.failures == []
    assert 0 < grown <= traffic.served
    assert ask(port) == ""
    up.ctrl_c()
    assert up.finish() == (0, "")
    assert up.pids() == {}


@pytest.mark.faults
def test_it_serves_on_whoever_is_killed(up: RealUpProcess) -> None:
    port = port_of(up)
    scale(up, "decode=2")
    for name, pid in (("decode-1", up.pid_of("--role decode")), ("redis", up.pid_of("redis-server"))):
        os.kill(pid, signal.SIGKILL)
        wait_for_end([pid])
        assert [ask(port) for _ in range(4)] == [""] * 4, name
        up.until_line("serves again")
        assert ask(port) == "", name
    killed, other = router_pids(up)
    os.kill(killed, signal.SIGKILL)
    wait_for_end([killed])
    assert [ask(port) for _ in range(4)] == [""] * 4
    assert other in router_pids(up)
    up.ctrl_c()
    assert up.finish() == (0, "")
    assert up.pids() == {}
