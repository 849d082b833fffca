"""A primary of Redis, its replica, and Sentinels that watch both: real servers on loopback ports of their own."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

import redis

from baton_serve.baton.processes.embedded_redis import find_redis_server
from tests.kits.patience import PATIENCE_S

SERVICE = "primary-of-tests"
#: Milliseconds of silence after which a Sentinel takes the primary for dead.
DOWN_AFTER_MS = 1000


def free_port() -> int:
    """One that leaves room for the port of a cluster's bus, which is 10,000 higher."""
    while True:
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            if (port := int(sock.getsockname()[1])) <= 65_535 - 10_000:
                return port


def patiently(is_so: Callable[[], bool]) -> None:
    """Ask until it is so. A server that is not there yet says no."""
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        with contextlib.suppress(redis.RedisError, OSError):
            if is_so():
                return
        assert time.monotonic() < deadline_s, f"{is_so} is still not so"
        time.sleep(0.05)


class Server:
    """One ``redis-server``, or a Sentinel."""

    def __init__(self, folder: Path, *config: str, is_sentinel: bool = False) -> None:
        self.port = free_port()
        name = f"{'sentinel' if is_sentinel else 'redis'}-{self.port}"
        path = folder / f"{name}.conf"
        lines = [f"port {self.port}", "bind 127.0.0.1", f"dir {folder}", f"dbfilename {name}.rdb", *config]
        path.write_text("\n".join(lines if not is_sentinel else [*lines[:3], *config]) + "\n")
        command = [str(find_redis_server()), str(path), *(["--sentinel"] if is_sentinel else [])]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        self.client = redis.Redis(port=self.port, socket_timeout=5)
        try:
            patiently(self.client.ping)
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, *command: str | int) -> object:
        return self.client.execute_command(*command)

    def close(self) -> None:
        self.client.close()
        self._process.kill()
        self._process.wait()


class RedisPair:
    """A primary and its replica. A context manager; ``swap`` exchanges them and leaves their connections open."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.servers: list[Server] = []

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def primary(self) -> Server:
        return self.servers[0]

    def start(self) -> None:
        primary = Server(self._folder, "save ''", "repl-diskless-sync-delay 0")
        self.servers = [primary, Server(self._folder, "save ''", f"replicaof 127.0.0.1 {primary.port}")]
        patiently(lambda: self.servers[1].client.info("replication")["master_link_status"] == "up")

    def stop(self) -> None:
        for server in self.servers:
            server.close()
        self.servers = []

    def swap(self) -> None:
        old, new = self.servers
        new.ask("REPLICAOF", "NO", "ONE")
        old.ask("REPLICAOF", "127.0.0.1", new.port)
        self.servers = [new, old]


class WatchedRedis(RedisPair):
    """The same with three Sentinels, which name the primary and replace it."""

    def start(self) -> None:
        super().start()
        config = [
            f"sentinel monitor {SERVICE} 127.0.0.1 {self.primary.port} 2",
            f"sentinel down-after-milliseconds {SERVICE} {DOWN_AFTER_MS}",
            f"sentinel failover-timeout {SERVICE} 5000",
        ]
        self.sentinels = [Server(self._folder, *config, is_sentinel=True) for _ in range(3)]
        patiently(lambda: all(self._knows_all(one) for one in self.sentinels))

    def stop(self) -> None:
        for sentinel in self.sentinels:
            sentinel.close()
        super().stop()

    @property
    def url(self) -> str:
        places = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in self.sentinels)
        return f"redis+sentinel://{places}/{SERVICE}/0"

    @property
    def pid(self) -> int:
        """Of the primary."""
        return self.primary.pid

    def fail_over(self) -> None:
        """As before work on the primary; returns when the Sentinels name the other one."""
        self.sentinels[0].ask("SENTINEL", "FAILOVER", SERVICE)
        self._until_replaced()

    def kill_primary(self) -> None:
        """Returns when the Sentinels name the other one."""
        self.primary.close()
        self._until_replaced()

    def _until_replaced(self) -> None:
        old, new = self.servers
        patiently(lambda: all(_named(sentinel) == new.port for sentinel in self.sentinels))
        self.servers = [new, old]

    @staticmethod
    def _knows_all(sentinel: Server) -> bool:
        (state,) = sentinel.client.sentinel_masters().values()
        return bool(state["num-slaves"] == 1 and state["num-other-sentinels"] == 2)


def _named(sentinel: Server) -> int:
    _, port = sentinel.client.sentinel_get_master_addr_by_name(SERVICE)
    return int(port)
