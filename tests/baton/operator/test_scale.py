"""``baton scale`` and the control socket of ``baton up``, with stand-ins for what serves."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import click
import pytest

from baton_serve.baton.operator.scale_command import choose, parse, port_of
from baton_serve.baton.processes.control_socket import ControlSocketError, Handle, control_socket, running, socket_path
from baton_serve.baton.processes.private_folder import PrivateFolderError
from baton_serve.core.protocol.scale import Answer, NotScaled, Scale, Scaled, decode_answer
from tests.kits.baton.up_process import StartUp, UpProcess


def scale(up: UpProcess, *words: str) -> tuple[int, str, str]:
    """Exit status, output and complaint of ``baton scale`` beside this ``baton up``."""
    done = up.baton("scale", *words)
    return done.returncode, done.stdout, done.stderr


def workers(up: UpProcess) -> list[str]:
    roles = (re.search(r"worker .*--role (\w+)", command) for command in up.pids().values())
    return sorted(role[1] for role in roles if role is not None)


def ask(path: Path, line: bytes) -> Answer:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))
        connection.sendall(line)
        with connection.makefile("rb") as answers:
            return decode_answer(answers.readline())


def test_up_and_down_again(ready_up: StartUp) -> None:
    up = ready_up()
    code, said, _ = scale(up, "prefill=2", "decode=3")
    assert (code, said.splitlines()[-1]) == (0, "prefill=2 decode=3")
    assert "decode-3: ready on" in said
    assert workers(up) == ["decode", "decode", "decode", "prefill", "prefill"]
    code, said, _ = scale(up, "decode=1")
    assert (code, said.splitlines()[-1]) == (0, "prefill=2 decode=1")
    assert {"decode-2: drains", "decode-2: has left", "decode-3: has left"} < set(said.splitlines())
    assert workers(up) == ["decode", "prefill", "prefill"]
    assert scale(up, "prefill=2") == (0, "prefill=2 decode=1\n", "")
    up.stop_well()
    assert up.stopped() == ["decode", "decode", "router", "decode", "prefill", "prefill"]
    assert list(up.temporary.iterdir()) == []


@pytest.mark.slow
def test_what_is_no_command_gets_a_reason_and_harms_nothing(start_up: StartUp, model_dir: str, free_port: int) -> None:
    up = start_up("--model", model_dir, "--port", str(free_port))
    up.until_ready()
    (folder,) = up.temporary.glob("baton-[0-9]*")
    path = socket_path(folder, free_port)
    assert folder.stat().st_mode & 0o777 == 0o700
    for line in (
        b"\n",
        b"scale\n",
        b'{"command": "stop"}\n',
        b'{"command": "scale", "decode": 0}\n',
        b"x" * 9000 + b"\n",
    ):
        assert isinstance(ask(path, line), NotScaled), line
    assert ask(path, b'{"command": "scale"}\n') == Scaled(1, 1)
    assert scale(up, "--url", f"http://127.0.0.1:{free_port}", "decode=2")[0] == 0
    assert scale(up, "--port", str(free_port), "decode=1")[0] == 0
    up.stop_well()


@pytest.mark.slow
def test_a_worker_that_cannot_start_leaves_the_others(ready_up: StartUp, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    up = ready_up(STAND_IN_BROKEN=str(broken))
    broken.touch()
    code, _, errors = scale(up, "decode=2")
    assert (code, errors) == (1, "baton: decode-2: it broke\n")
    broken.unlink()
    assert workers(up) == ["decode", "prefill"]
    assert scale(up, "decode=2")[0] == 0
    up.stop_well()


@pytest.mark.parametrize("words", [[], ["decode"], ["decode=x"], ["router=2"], ["decode=1", "decode=2"], ["decode=0"]])
def test_words_that_say_nothing(words: list[str]) -> None:
    with pytest.raises(click.UsageError):
        parse(words)


def test_words() -> None:
    assert parse(["prefill=2", "decode=3"]) == Scale(2, 3)
    assert parse(["decode=3"]) == Scale(None, 3)


@pytest.fixture
def nothing_to_do() -> Handle:
    async def handle(_: Scale, __: object) -> Answer:
        return Scaled(1, 1)

    return handle


async def test_several_on_one_machine_are_told_apart_by_port(tmp_path: Path, nothing_to_do: Handle) -> None:
    folder = tmp_path / "baton"
    with pytest.raises(ControlSocketError, match="no baton up of this user runs"):
        choose(folder, None)
    async with control_socket(socket_path(folder, 8000), nothing_to_do):
        assert choose(folder, None) == socket_path(folder, 8000)
        async with control_socket(socket_path(folder, 9000), nothing_to_do):
            with pytest.raises(
                ControlSocketError, match=r"on ports 8000, 9000; choose one, as in --url http://127.0.0.1:8000"
            ):
                choose(folder, None)
            with pytest.raises(ControlSocketError, match="another baton up"):
                async with control_socket(socket_path(folder, 9000), nothing_to_do):
                    pass
        assert list(running(folder)) == [8000]
    assert not folder.exists()


@pytest.mark.parametrize("url", ["http://127.0.0.1:8000", "https://localhost:8000", "http://0.0.0.0:8000/"])
def test_the_url_of_a_router_of_this_machine_names_its_baton_up(url: str) -> None:
    assert port_of(url) == 8000


def test_the_url_of_another_machine_scales_nothing_here() -> None:
    with pytest.raises(ControlSocketError, match="baton scale runs where its baton up runs"):
        port_of("http://192.0.2.1:8000")


async def test_what_a_killed_one_left_is_no_hindrance(tmp_path: Path, nothing_to_do: Handle) -> None:
    path = socket_path(tmp_path / "baton", 8000)
    path.parent.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    assert running(path.parent) == {}
    async with control_socket(path, nothing_to_do):
        assert list(running(path.parent)) == [8000]


async def test_a_folder_that_others_may_enter_is_refused(tmp_path: Path, nothing_to_do: Handle) -> None:
    folder = tmp_path / "baton"
    folder.mkdir()
    folder.chmod(0o750)
    with pytest.raises(PrivateFolderError, match="is not a folder of this user alone"):
        async with control_socket(socket_path(folder, 8000), nothing_to_do):
            pass


@pytest.mark.slow
def test_who_does_not_serve_leaves_first(ready_up: StartUp) -> None:
    up = ready_up("--decode", "2", STAND_IN_FAILING="decode-1")
    code, said, _ = scale(up, "decode=1")
    assert (code, said.splitlines()) == (0, ["decode-1: drains", "decode-1: has left", "prefill=1 decode=1"])
    assert workers(up) == ["decode", "prefill"]
    up.stop_well()
