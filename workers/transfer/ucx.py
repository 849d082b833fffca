"""UCX's environment: which interfaces it may use and how much it says.

NIXL reads its part when it is imported and UCX when the first agent is made, so it belongs into the environment that a
rank process is started with. NIXL would otherwise write lines to the standard output.
"""

from __future__ import annotations

import ipaddress
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import MutableMapping

#: Every failure reaches us as a typed error; NIXL's and UCX's own lines would only say it twice.
_QUIET = {"UCX_LOG_LEVEL": "fatal", "UCX_WARN_UNUSED_ENV_VARS": "n", "NIXL_LOG_LEVEL": "FATAL"}
#: With this alone UCX listens on 127.0.0.1 only and still uses shared memory, which needs no interface.
_LOOPBACK = {"UCX_NET_DEVICES": "lo"}


def ucx_environment(bind_host: str) -> dict[str, str]:
    """The variables for a worker whose internal port is bound to ``bind_host``.

    A worker on loopback must not be readable from outside: UCX listens on all interfaces unless told otherwise, and
    NIXL asks nobody for a token. On any other host UCX chooses its devices itself. ``UCX_TLS`` is never set here.
    """
    return _QUIET | (_LOOPBACK if _is_loopback(bind_host) else {})


def apply_ucx_environment(bind_host: str, environ: MutableMapping[str, str] = os.environ) -> None:
    """Set what the user has not set: whoever sets a UCX or NIXL variable means it."""
    for name, value in ucx_environment(bind_host).items():
        environ.setdefault(name, value)


def _is_loopback(host: str) -> bool:
    """True for ``localhost`` and loopback addresses; names are not looked up."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
