"""What UCX, the transport below NIXL, is told before it is loaded: its network interfaces, and what it logs. On Linux.

NIXL reads its variables when it is imported, UCX when the first agent is made, so they have to be set earlier. NIXL
itself is not imported here.
"""

from __future__ import annotations

import array
import fcntl
import ipaddress
import os
import socket
import struct
from collections.abc import Iterator, MutableMapping
from pathlib import Path

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

_SIOCGIFCONF = 0x8912
#: ``struct ifconf``: the buffer's length in bytes and its address.
_IFCONF = "iP"
#: ``struct ifreq`` of 64-bit machines: name, then a ``sockaddr_in`` (family, port, address), padded.
_IFREQ = struct.Struct("16s4x4s16x")
#: Upper bound of a machine's IPv4 addresses: more than any has.
_MAX_ADDRESSES = 4096
_IPV6_ADDRESSES = Path("/proc/net/if_inet6")
_RDMA_DEVICES = Path("/sys/class/infiniband")
#: Every failure is raised as an exception; the log lines of NIXL and UCX would only repeat it, on standard output.
_QUIET = {"UCX_LOG_LEVEL": "fatal", "UCX_WARN_UNUSED_ENV_VARS": "n", "NIXL_LOG_LEVEL": "FATAL"}
#: Without NVLink UCX does not read from one process's GPU memory into another's, but through memory of the host, unless
#: it is told to.
_DIRECT_GPU_READS = {"UCX_CUDA_IPC_ENABLE_GET_ZCOPY": "on"}
#: With this interface UCX listens on 127.0.0.1 only, and still uses shared memory, which needs no interface.
_LOOPBACK = "lo"


def ucx_environment(bind_host: str) -> dict[str, str]:
    """The variables for a worker whose internal port is bound to ``bind_host``.

    By default UCX listens on all interfaces, and NIXL checks no token, so UCX gets only the interface of the internal
    port. If that port is bound to all addresses, UCX chooses its devices itself. ``UCX_TLS`` is not set.
    """
    devices = _devices(bind_host)
    fixed = _QUIET | _DIRECT_GPU_READS
    return fixed if devices is None else fixed | {"UCX_NET_DEVICES": devices}


def apply_ucx_environment(bind_host: str, environ: MutableMapping[str, str] = os.environ) -> None:
    """Set the variables that the user has not set."""
    for name, value in ucx_environment(bind_host).items():
        environ.setdefault(name, value)


def _devices(host: str) -> str | None:
    """The devices for ``host``; None for all devices. RDMA devices are allowed, because an RDMA read needs a key from
    the handshake."""
    address = resolve(host)
    if address is None or address.is_unspecified:
        return None
    if address.is_loopback:
        return _LOOPBACK
    interface = interface_of(address)
    return None if interface is None else ",".join([interface, *rdma_ports()])


def resolve(host: str) -> IPAddress | None:
    """The address that a server bound to ``host`` has; None for an unknown name. May block."""
    try:
        found = socket.getaddrinfo(host.strip("[]") or None, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError:
        return None
    return ipaddress.ip_address(found[0][4][0])


def interface_of(address: IPAddress) -> str | None:
    """The name of the interface that has ``address``, if any."""
    if isinstance(address, ipaddress.IPv6Address) and address.scope_id:
        return address.scope_id
    return next((name for name, one in addresses() if one == address), None)


def addresses() -> Iterator[tuple[str, IPAddress]]:
    """Every address of this machine, as pairs of interface name and address."""
    yield from _ipv4_addresses()
    yield from _ipv6_addresses()


def rdma_ports(devices: Path = _RDMA_DEVICES) -> list[str]:
    """Every port of every RDMA device by UCX's name for it, such as ``mlx5_0:1``."""
    return [f"{port.parts[-3]}:{port.name}" for port in sorted(devices.glob("*/ports/*"))]


def _ipv4_addresses() -> Iterator[tuple[str, ipaddress.IPv4Address]]:
    buffer = array.array("B", bytes(_IFREQ.size * _MAX_ADDRESSES))
    request = bytearray(struct.pack(_IFCONF, len(buffer), buffer.buffer_info()[0]))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCGIFCONF, request)
    num_bytes, _ = struct.unpack(_IFCONF, request)
    for label, raw in _IFREQ.iter_unpack(buffer[:num_bytes]):
        # An interface's second address may have a label: the interface's name, a colon and a suffix.
        yield label.partition(b"\0")[0].decode().partition(":")[0], ipaddress.IPv4Address(raw)


def _ipv6_addresses() -> Iterator[tuple[str, ipaddress.IPv6Address]]:
    if not _IPV6_ADDRESSES.exists():  # a kernel without IPv6
        return
    for line in _IPV6_ADDRESSES.read_text().splitlines():
        raw, *_, name = line.split()
        yield name, ipaddress.IPv6Address(bytes.fromhex(raw))
