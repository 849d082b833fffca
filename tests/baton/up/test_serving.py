"""``baton up`` with the demo model: it serves while its workers come, go and die."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import httpx
import pytest

from tests.kits.baton.up_process import RealUpProcess, wait_for_end


def ask(url: str) -> str:
    """One request on a connection of its own; empty if it was served, else what went wrong."""
    body = {"model": "baton-demo", "prompt": "What is a lease? A lease", "max_tokens": 24, "ignore_eos": True}
    try:
        answer = httpx.post(f"{url}/completions", json=body, timeout=120)
    except httpx.HTTPError as error:
        return repr(error)
    served = answer.status_code == 200 and answer.json()["usage"]["completion_tokens"] == 24
    return "" if served else f"{answer.status_code} {answer.text}"


def router_pids(up: RealUpProcess) -> list[int]:
    return [pid for pid, command in up.pids().items() if "--group" in command]


@pytest.mark.faults
def test_it_serves_on_whoever_comes_is_killed_or_goes(tmp_path: Path) -> None:
    with RealUpProcess(tmp_path, "--port", "0", "--routers", "2", "--threads-per-worker", "1") as up:
        url = re.findall(r"http://127\.0\.0\.1:\d+/v1", up.until_ready())[0]
        assert up.baton("scale", "decode=2").returncode == 0
        for name, pid in (("decode-1", up.pid_of("--role decode")), ("redis", up.pid_of("redis-server"))):
            os.kill(pid, signal.SIGKILL)
            wait_for_end([pid])
            assert [ask(url) for _ in range(4)] == [""] * 4, name
            up.until_line("serves again")
            assert ask(url) == "", name
        killed, other = router_pids(up)
        os.kill(killed, signal.SIGKILL)
        wait_for_end([killed])
        assert [ask(url) for _ in range(4)] == [""] * 4
        assert other in router_pids(up)
        assert up.baton("scale", "decode=1").returncode == 0
        assert [ask(url) for _ in range(4)] == [""] * 4
        up.stop_well()
