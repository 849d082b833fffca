"""How to reach one vLLM engine: what its prefill answer says in ``kv_transfer_params``."""

from __future__ import annotations

import msgspec

from baton_serve.core.protocol.addresses import is_host
from baton_serve.core.protocol.id_syntax import HAND_OFF_ID

#: Most ranks of one engine, far more than any has. Each of them is asked by itself, so there is a bound.
MAX_RANKS = 1024


class RemoteEngine(msgspec.Struct, frozen=True, kw_only=True):
    """One vLLM engine, its side channel, and its port for handshakes over HTTP; 0: it has none.

    A worker says this about itself, so it is checked.

    Every rank ``(pp, tp)`` with ``pp < pp_size`` and ``tp < tp_size`` has a part of the blocks. Raises ValueError.
    """

    engine_id: str
    host: str
    port: int
    handshake_port: int = 0
    tp_size: int = 1
    pp_size: int = 1
    dcp_size: int = 1

    def __post_init__(self) -> None:
        if not HAND_OFF_ID.fullmatch(self.engine_id):
            raise ValueError("remote_engine_id is not the id of an engine")
        check_address(self.host, self.port, self.handshake_port)
        if min(self.tp_size, self.pp_size, self.dcp_size) < 1 or self.tp_size * self.pp_size > MAX_RANKS:
            raise ValueError(
                f"tp_size, pp_size and dcp_size are at least 1, and an engine has {MAX_RANKS} ranks at most"
            )

    @property
    def ranks(self) -> list[tuple[int, int]]:
        """All ranks as (pp rank, tp rank), rank (0, 0) first. With decode context parallelism vLLM counts the ranks of
        that in ``tp_size``.
        """
        return [(pp_rank, tp_rank) for pp_rank in range(self.pp_size) for tp_rank in range(self.tp_size)]


def check_address(host: str, port: int, handshake_port: int = 0) -> None:
    """Raises ValueError unless this could be the address of a side channel, and of handshakes over HTTP."""
    if not is_host(host):
        raise ValueError("remote_host is neither a name nor an IP address")
    if not 0 < port < 65536:
        raise ValueError("remote_port is not a number from 1 to 65535")
    if not 0 <= handshake_port < 65536:
        raise ValueError("handshake_port is not a number from 1 to 65535")
