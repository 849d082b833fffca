"""How a worker asks another engine for its handshake: over HTTP with proofs of the token, or on the side channel."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

from baton_serve.core.net.vllm_handshakes import ask
from baton_serve.core.protocol.vllm_handshake import PORT_FIELD

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable, Mapping

    from baton_serve.core.net.vllm_handshakes import Handshake
    from baton_serve.core.protocol.vllm_handshake import Rank

#: Engines whose ports are remembered. Clients may name engines that do not exist; the oldest is forgotten first.
MAX_ENGINES = 4096


class ClosedSideChannelError(Exception):
    """The engine answers no handshakes over HTTP that we know of, and this server asks no side channel."""


def handshake_port(params: Mapping[str, Any] | None) -> tuple[str, int] | None:
    """The engine in ``kv_transfer_params`` and its port for handshakes; None: it has none. Clients may have written it.

    Only proofs for that very address are sent there (``core/protocol/vllm_handshake.py``).
    """
    if params is None:
        return None
    engine_id, port = params.get("remote_engine_id"), params.get(PORT_FIELD)
    if not isinstance(engine_id, str) or type(port) is not int or not 0 < port < 65536:
        return None
    return engine_id, port


class Peers:
    """Of one worker. ``key``: of the proofs; None: this server has no token, and asks side channels.

    ``learn`` is called in the worker's own thread, ``ask`` in vLLM's thread for handshakes.
    """

    def __init__(self, key: bytes | None, *, asks_side_channels: bool) -> None:
        self._key = key
        self._asks_side_channels = asks_side_channels
        self._lock = threading.Lock()
        self._ports: dict[str, int] = {}

    def learn(self, ports: Mapping[str, int]) -> None:
        """These engines answer handshakes over HTTP on these ports."""
        with self._lock:
            for engine_id, port in ports.items():
                self._ports.pop(engine_id, None)
                self._ports[engine_id] = port
            while len(self._ports) > MAX_ENGINES:
                del self._ports[next(iter(self._ports))]

    def ask(self, engine_id: str, host: str, ranks: Iterable[Rank]) -> Handshake | None:
        """What the engine answers over HTTP; None: ask its side channel.

        Raises HandshakeFailedError, and ClosedSideChannelError. There is no second try on the side channel: who stands
        between the two would only have to disturb the first one.
        """
        with self._lock:
            port = self._ports.get(engine_id)
        if self._key is not None and port is not None:
            return _run(ask(host, port, self._key, ranks))
        if not self._asks_side_channels:
            raise ClosedSideChannelError(
                f"The engine at {host} answers no handshakes with a token, and BATON_SIDE_CHANNEL is closed here."
            )
        return None


def _run(asking: Coroutine[Any, Any, Handshake]) -> Handshake:
    """``asyncio.run`` would wait in the end for a name that is still being looked up, however long that takes; and
    vLLM has one thread for the handshakes with all engines.
    """
    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(asking)
    finally:
        loop.close()
