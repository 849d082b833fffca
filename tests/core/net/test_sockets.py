"""Options of sockets."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from baton_serve.core.net.sockets import listen, port_of, set_tcp_options


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_options_are_set_on_what_loops_give_for_a_socket(run: Callable[[Coroutine[Any, Any, None]], None]) -> None:
    async def main() -> None:
        with listen("127.0.0.1", 0) as served:
            _, writer = await asyncio.open_connection("127.0.0.1", port_of(served))
            sock = writer.get_extra_info("socket")
            set_tcp_options(sock, {"TCP_KEEPIDLE": 15, "TCP_NO_SUCH_OPTION": 1})
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 15
            writer.close()
            await writer.wait_closed()

    run(main())


def test_options_of_a_closed_socket_are_an_error_of_the_system() -> None:
    with socket.socket() as sock:
        pass
    with pytest.raises(OSError, match="closed"):
        set_tcp_options(sock, {})
