"""The environment variables that set which interfaces UCX and NIXL use and what they log.

NIXL reads its variables when it is imported, UCX when the first agent is made, so they have to be set earlier.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from baton_serve.core.ucx.network import interface_of, rdma_ports, resolve

if TYPE_CHECKING:
    from collections.abc import MutableMapping

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
