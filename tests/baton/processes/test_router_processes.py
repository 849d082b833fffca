"""``baton router --processes``: several router processes on one port."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from baton_serve.baton.cli import main
from baton_serve.baton.processes.child import COMMAND, Child, ChildSpec
from baton_serve.baton.processes.embedded_redis import EmbeddedRedis
from baton_serve.core.net.sockets import listen, reserve
from baton_serve.core.process.descendants import children_of
from tests.kits.baton.up_process import wait_for_end


def answers(url: str, number: int) -> int:
    """How many of so many new connections are served."""
    served = 0
    for _ in range(number):
        with urllib.request.urlopen(f"{url}/health") as response:
            served += response.status == 200
    return served


def test_connections_are_dealt_out_to_all_who_share_the_port() -> None:
    with reserve("127.0.0.1", 0) as held:
        port = held.getsockname()[1]
        with listen("127.0.0.1", port, shared=True) as one, listen("127.0.0.1", port, shared=True) as other:
            one.setblocking(False)
            other.setblocking(False)
            taken = [0, 0]
            for _ in range(64):
                with socket.create_connection(("127.0.0.1", port)):
                    for index, sock in enumerate((one, other)):
                        try:
                            sock.accept()[0].close()
                        except BlockingIOError:
                            continue
                        taken[index] += 1
    assert sum(taken) == 64
    assert min(taken) > 0


def test_a_reserved_port_is_not_for_those_who_do_not_share() -> None:
    with reserve("127.0.0.1", 0) as held:
        port = held.getsockname()[1]
        with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1 port {port}: Address already in use"):
            listen("127.0.0.1", port)
        with listen("127.0.0.1", port, shared=True), pytest.raises(OSError, match="Address already in use"):
            reserve("127.0.0.1", port)


@asynccontextmanager
async def router(folder: Path, redis_url: str, *flags: str) -> AsyncIterator[Child]:
    """``baton router`` with two processes, and nothing of it afterwards."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("BATON_")}
    argv = (*COMMAND, "router", "--processes", "2", "--port", "0", *flags)
    child = Child(ChildSpec("router", argv, {**clean, "BATON_REDIS_URL": redis_url}), folder / "log", lambda *_: None)
    await child.start()
    try:
        yield child
    finally:
        await child.stop(0)


async def until_said(child: Child, what: str) -> None:
    assert child.log_path is not None
    while what not in child.log_path.read_text():  # noqa: ASYNC110 (a file tells nobody)
        await asyncio.sleep(0.01)


async def exit_code(child: Child) -> int:
    assert child._process is not None
    return await child._process.wait()


@pytest.mark.slow
async def test_one_process_dies_and_the_others_go_on(own_redis: EmbeddedRedis, tmp_path: Path) -> None:
    async with router(tmp_path, own_redis.url) as parent:
        url = (await parent.ready()).url
        assert parent.pid is not None
        first, second = children_of(parent.pid)
        os.kill(first, signal.SIGKILL)
        wait_for_end([first])
        assert answers(url, 20) == 20
        await until_said(parent, "was ended by SIGKILL; starting it again")
        await until_said(parent, "serves again")
        assert second in children_of(parent.pid)
        assert len(children_of(parent.pid)) == 2
        assert answers(url, 20) == 20
        await parent.stop(60)
        assert await parent.ended() == "router: ended with exit code 0"
        wait_for_end([second])


async def test_sigkill_of_the_parent_leaves_nothing(own_redis: EmbeddedRedis, tmp_path: Path) -> None:
    async with router(tmp_path, own_redis.url) as parent:
        await parent.ready()
        assert parent.pid is not None
        children = children_of(parent.pid)
        os.kill(parent.pid, signal.SIGKILL)
        wait_for_end(children)


async def test_a_port_in_use_is_one_line(redis_url: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        async with router(tmp_path, redis_url, "--port", str(port)) as parent:
            reason = f"router: cannot listen on 127.0.0.1 port {port}: Address already in use"
            assert await parent.ended() == reason
            assert await exit_code(parent) == 1
            assert (tmp_path / "log").read_text() == f"{reason}\n"


@pytest.mark.slow
async def test_processes_that_cannot_start_end_the_parent(tmp_path: Path) -> None:
    async with router(tmp_path, "redis://127.0.0.1:1/0?socket_timeout=soon") as parent:
        assert (await parent.ended()).endswith("redis_url is not understood by the Redis client")
        assert await exit_code(parent) == 1
        assert parent.pid is not None
        assert children_of(parent.pid) == []


def test_no_redis_is_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    alone = ["--redis-url", "", "--prefill", "http://127.0.0.1:1", "--decode", "http://127.0.0.1:2"]
    assert main(["router", "--processes", "2", *alone]) == 2
    assert "processes above 1 needs redis_url" in capsys.readouterr().err
