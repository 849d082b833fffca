"""UCX's environment: which interfaces it may use and how much it says.

NIXL reads its part when it is imported and UCX when the first agent is made, so it belongs into the environment that a
rank process is started with. NIXL would otherwise write lines to the standard output.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from workers.transfer.network import interface_of, rdma_ports, resolve

if TYPE_CHECKING:
    from collections.abc import MutableMapping

#: Every failure reaches us as a typed error; NIXL's and UCX's own lines would only say it twice.
_QUIET = {"UCX_LOG_LEVEL": "fatal", "UCX_WARN_UNUSED_ENV_VARS": "n", "NIXL_LOG_LEVEL": "FATAL"}
#: With this alone UCX listens on 127.0.0.1 only and still uses shared memory, which needs no interface.
_LOOPBACK = "lo"


def ucx_environment(bind_host: str) -> dict[str, str]:
    """The variables for a worker whose internal port is bound to ``bind_host``.

    UCX listens on all interfaces unless told otherwise, and NIXL asks nobody for a token: so UCX gets the interface
    of the internal port and no other. On a host that stands for all addresses it chooses its devices itself.
    ``UCX_TLS`` is never set here.
    """
    devices = _devices(bind_host)
    return _QUIET if devices is None else _QUIET | {"UCX_NET_DEVICES": devices}


def apply_ucx_environment(bind_host: str, environ: MutableMapping[str, str] = os.environ) -> None:
    """Set what the user has not set: whoever sets a UCX or NIXL variable means it."""
    for name, value in ucx_environment(bind_host).items():
        environ.setdefault(name, value)


def _devices(host: str) -> str | None:
    """Of ``host``; None for all. RDMA devices stay: without a key from the handshake they read nothing for anybody."""
    address = resolve(host)
    if address is None or address.is_unspecified:
        return None
    if address.is_loopback:
        return _LOOPBACK
    interface = interface_of(address)
    return None if interface is None else ",".join([interface, *rdma_ports()])
