"""A Baton whose processes are on a network of their own: one network namespace each, and a router of packets between.

The packets of every namespace go through this process (one TUN device each), which lets them pass, drops them or holds
them up, by who sends to whom. No netem and no firewall: the one is missing in small kernels, the other is the
machine's. Needs root, ``ip`` and ``/dev/net/tun``.
"""

from __future__ import annotations

import contextlib
import fcntl
import heapq
import itertools
import os
import select
import shutil
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Self

from baton_serve.baton.cluster.cluster import REDIS, Cluster
from baton_serve.baton.cluster.process import ROUTER, ProcessSpec
from baton_serve.baton.processes.embedded_redis import EmbeddedRedis, find_redis_server
from baton_serve.baton.torture.shape import Shape

_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000  # <linux/if_tun.h>
#: IPv4 only: where the source is in a packet, and the destination.
_SOURCE, _DESTINATION = slice(12, 16), slice(16, 20)
MTU = 9000
#: This process is a host as well.
CLIENTS = "clients"
TOKEN = "0123456789abcdef"
REDIS_PORT = 6379


def why_not() -> str:
    """Why there can be no such network here; empty when there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "there is no ip (iproute2)"
    if not Path("/dev/net/tun").exists():
        return "there is no /dev/net/tun"
    made = subprocess.run(["ip", "netns", "add", _name("try")], capture_output=True, check=False)
    if made.returncode:
        return f"no network namespace: {made.stderr.decode().strip()}"
    _ip("netns", "del", _name("try"))
    return ""


class Network:
    """``with Network(names) as network``: a namespace for each name, all of which reach each other and this process."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = list(names)
        # Of the block that is kept for tests of networks (RFC 2544), by process: several may run at once.
        prefix = f"198.18.{os.getpid() % 256}"
        self.addresses = {name: f"{prefix}.{i}" for i, name in enumerate([CLIENTS, *self.names], start=1)}
        #: Seconds that packets from one to another are held up; infinite: dropped.
        self._rules: dict[tuple[bytes, bytes], float] = {}
        self.num_dropped = self.num_delayed = 0
        self._stop = os.eventfd(0, os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._carry, name="packets", daemon=True)
        self._exit = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            stack.callback(os.close, self._stop)
            self._fds = {_raw(address): self._add(stack, name, address) for name, address in self.addresses.items()}
            self._thread.start()
            self._exit = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        os.eventfd_write(self._stop, 1)
        self._thread.join()
        self._exit.close()

    def command(self, name: str) -> tuple[str, ...]:
        """What is put before a command that shall run there."""
        return ("ip", "netns", "exec", _name(name))

    def cut(self, source: str, destination: str) -> None:
        """Nothing gets from the one to the other; the way back is open."""
        self.delay(source, destination, float("inf"))

    def delay(self, source: str, destination: str, seconds: float) -> None:
        """Everything from the one to the other takes so much longer."""
        self._rules[_raw(self.addresses[source]), _raw(self.addresses[destination])] = seconds

    def heal(self) -> None:
        """As in the beginning."""
        self._rules = {}

    def _add(self, stack: contextlib.ExitStack, name: str, address: str) -> int:
        fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        stack.callback(os.close, fd)
        device = f"bt{os.getpid()}x{address.rpartition('.')[2]}"
        fcntl.ioctl(fd, _TUNSETIFF, struct.pack("16sH22x", device.encode(), _IFF_TUN | _IFF_NO_PI))
        where: tuple[str, ...] = ()
        if name != CLIENTS:
            _ip("netns", "add", _name(name))
            stack.callback(_ip, "netns", "del", _name(name))
            _ip("link", "set", device, "netns", _name(name))
            where = ("-n", _name(name))
            _ip(*where, "link", "set", "lo", "up")
        _ip(*where, "addr", "add", f"{address}/24", "dev", device)
        _ip(*where, "link", "set", device, "mtu", str(MTU), "up")
        return fd

    def _carry(self) -> None:
        waiting: list[tuple[float, int, int, bytes]] = []
        order = itertools.count()
        poll = select.epoll()
        with contextlib.closing(poll):
            for fd in (self._stop, *self._fds.values()):
                poll.register(fd, select.EPOLLIN)
            while True:
                left_s = max(0.0, waiting[0][0] - time.monotonic()) if waiting else -1
                ready = [fd for fd, _ in poll.poll(left_s)]
                if self._stop in ready:
                    return
                for fd in ready:
                    for packet in _packets(fd):
                        self._take(packet, waiting, order)
                while waiting and waiting[0][0] <= time.monotonic():
                    _, _, target, packet = heapq.heappop(waiting)
                    _write(target, packet)

    def _take(self, packet: bytes, waiting: list[tuple[float, int, int, bytes]], order: itertools.count[int]) -> None:
        target = self._fds.get(packet[_DESTINATION])
        if target is None:  # multicast, or IPv6
            return
        held_s = self._rules.get((packet[_SOURCE], packet[_DESTINATION]), 0.0)
        if held_s == float("inf"):
            self.num_dropped += 1
        elif held_s:
            self.num_delayed += 1
            heapq.heappush(waiting, (time.monotonic() + held_s, next(order), target, packet))
        else:
            _write(target, packet)


def _packets(fd: int) -> Iterable[bytes]:
    with contextlib.suppress(BlockingIOError):
        for _ in range(64):  # then the others have their turn
            yield os.read(fd, MTU)


def _write(fd: int, packet: bytes) -> None:
    with contextlib.suppress(OSError):  # it is lost, as packets may be
        os.write(fd, packet)


def _raw(address: str) -> bytes:
    return socket.inet_aton(address)


def _name(name: str) -> str:
    return f"baton-{os.getpid()}-{name}"


def _ip(*argv: str) -> None:
    subprocess.run(["ip", *argv], check=True, capture_output=True)


class RedisThere(EmbeddedRedis):
    """In its namespace, reachable by the others with its password."""

    def __init__(self, network: Network, folder: Path) -> None:
        binary = folder / "redis-there"
        command = " ".join([*network.command(REDIS), str(find_redis_server())])
        binary.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        binary.chmod(0o700)
        super().__init__(port=REDIS_PORT, log_path=folder / "redis.log", binary=binary)
        self._address = network.addresses[REDIS]

    @property
    def url(self) -> str:
        return super().url.replace("127.0.0.1", self._address)

    def _config(self, directory: Path) -> str:
        return super()._config(directory).replace("bind 127.0.0.1", f"bind {self._address}")


class SpreadCluster(Cluster):
    """Every process in a namespace of its own name. They are told their addresses and a token, and nothing else."""

    def __init__(self, folder: Path, shape: Shape, network: Network) -> None:
        super().__init__(folder, {name: _there(name, spec, network) for name, spec in shape.specs.items()})
        self.network = network
        self.redis = RedisThere(network, folder)
        self.http.headers["authorization"] = f"Bearer {TOKEN}"


def _there(name: str, spec: ProcessSpec, network: Network) -> ProcessSpec:
    """Shared memory would go past the network: the processes are on one machine after all. Other tests'
    UCX_NET_DEVICES would be taken for the user's: no process would leave its namespace.
    """
    router = {"allow-anonymous": True, "admin-token": TOKEN} if spec.kind == ROUTER else {}
    return replace(
        spec,
        flags={**spec.flags, **router, "host": network.addresses[name]},
        environ={"BATON_INTERNAL_TOKEN": TOKEN, "UCX_TLS": "tcp"},
        prefix=network.command(name),
        not_inherited=("BATON_", "UCX_", "NIXL_"),
    )
