"""``baton router --processes``: several router processes on one port."""

from __future__ import annotations

import os
import signal
import socket
import urllib.request
from typing import TYPE_CHECKING

import pytest

from baton_serve.baton.cli import main
from baton_serve.core.net.sockets import listen, reserve
from baton_serve.core.protocol.status import Failed
from tests.kits.baton.router_processes import RouterProcess
from tests.kits.baton.up_process import wait_for_end

if TYPE_CHECKING:
    from baton_serve.baton.processes.embedded_redis import EmbeddedRedis


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


@pytest.mark.slow
def test_one_process_dies_and_the_others_go_on(own_redis: EmbeddedRedis) -> None:
    with RouterProcess(own_redis.url, "--processes", "2") as router:
        url = router.until_ready()
        first, second = router.children()
        os.kill(first, signal.SIGKILL)
        wait_for_end([first])
        assert answers(url, 20) == 20
        router.until_line("was ended by SIGKILL; starting it again")
        router.until_line("serves again")
        assert second in router.children()
        assert len(router.children()) == 2
        assert answers(url, 20) == 20
        router.signal(signal.SIGTERM)
        assert router.finish()[0] == 0
        assert router.statuses() == []
        wait_for_end([second])


def test_sigkill_of_the_parent_leaves_nothing(own_redis: EmbeddedRedis) -> None:
    with RouterProcess(own_redis.url, "--processes", "2") as router:
        router.until_ready()
        children = router.children()
        router.signal(signal.SIGKILL)
        wait_for_end(children)


def test_a_port_in_use_is_one_line(redis_url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with RouterProcess(redis_url, "--processes", "2", "--port", str(port)) as router:
            reason = f"cannot listen on 127.0.0.1 port {port}: Address already in use"
            assert router.finish() == (1, f"router: {reason}\n")
            assert router.statuses() == [Failed(reason)]


@pytest.mark.slow
def test_processes_that_cannot_start_end_the_parent() -> None:
    with RouterProcess("redis://127.0.0.1:1/0?socket_timeout=soon", "--processes", "2") as router:
        code, errors = router.finish()
        assert code == 1
        assert errors.splitlines()[-1].endswith("redis_url is not understood by the Redis client")
        assert router.children() == []


def test_no_redis_is_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    alone = ["--redis-url", "", "--prefill", "http://127.0.0.1:1", "--decode", "http://127.0.0.1:2"]
    assert main(["router", "--processes", "2", *alone]) == 2
    assert "processes above 1 needs redis_url" in capsys.readouterr().err
