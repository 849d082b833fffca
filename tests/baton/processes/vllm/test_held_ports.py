"""Ports that are held: servers may use them, nobody else."""

from __future__ import annotations

import socket

import pytest

from baton_serve.baton.processes.vllm.held_ports import HeldPorts


def test_a_server_may_listen_again_and_again_and_nobody_else() -> None:
    with HeldPorts() as ports:
        port = ports.take()
        for _ in range(2):
            with socket.socket() as server:
                server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                server.bind(("127.0.0.1", port))
                server.listen()
                socket.create_connection(("127.0.0.1", port)).close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))
        with socket.socket() as stranger, pytest.raises(OSError, match="in use"):
            stranger.bind(("127.0.0.1", port))
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", port))


def test_ports_in_a_row_are_all_held() -> None:
    with HeldPorts() as ports:
        taken = [ports.take(3), ports.take(2)]
        held = {taken[0], taken[0] + 1, taken[0] + 2, taken[1], taken[1] + 1}
        assert len(held) == 5
        for port in held:
            with socket.socket() as stranger, pytest.raises(OSError, match="in use"):
                stranger.bind(("127.0.0.1", port))


def test_none_is_kept_of_a_row_that_somebody_stands_in(monkeypatch: pytest.MonkeyPatch) -> None:
    with HeldPorts() as ports, socket.socket() as stranger:
        first = ports.take(2)
        ports.close()
        stranger.bind(("127.0.0.1", first + 2))
        bind, asked = HeldPorts._bind, []

        def bind_same_first(self: HeldPorts, port: int) -> socket.socket:
            asked.append(port)
            return bind(self, first if port == 0 and len(asked) == 1 else port)

        monkeypatch.setattr(HeldPorts, "_bind", bind_same_first)
        ports.take(3)
        assert asked[:4] == [0, first + 1, first + 2, 0]
        for port in (first, first + 1):
            with socket.socket() as other:
                other.bind(("127.0.0.1", port))
