"""Asks the side channel of a vLLM server, with well-formed questions about ranks that exist, and nothing else.

vLLM's listener is one thread without a net: a question that it cannot decode, or about a rank that it does not have,
ends it for good, and with it every later handshake of that server. A server that answers handshakes over HTTP is asked
there, if this router has the token: its side channel may be closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING

import zmq
import zmq.asyncio
from zmq.utils.monitor import recv_monitor_message

from baton_serve.core.net.vllm_handshakes import HandshakeFailedError, ask
from baton_serve.core.protocol.vllm_handshake import place
from baton_serve.router.vllm.leases.side_channel_facts import (
    SideChannelError,
    SideChannelReason,
    parse,
    query,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from baton_serve.router.vllm.leases.remote_engine import RemoteEngine
    from baton_serve.router.vllm.leases.side_channel_facts import RankAnswer, SideChannelFacts

#: Longest wait for one answer, seconds. The same as vLLM's own decode workers have.
TIMEOUT_S = 5.0
#: Bytes of the largest answer. One of vLLM has some thousands, and tens of bytes more for each region of memory.
MAX_ANSWER_BYTES = 16 << 20


class SideChannels:
    """All side channels, any number of them at once. Needs a running loop."""

    def __init__(self, timeout_s: float = TIMEOUT_S) -> None:
        """``timeout_s``: longest wait for one answer."""
        self._context = zmq.asyncio.Context()
        self._timeout_s = timeout_s
        self._key: bytes | None = None

    def use_key(self, key: bytes) -> None:
        """Ask over HTTP from now on where a port for that is known, with proofs under this key."""
        self._key = key

    def close(self) -> None:
        """End ZMQ. Nothing may be asked meanwhile."""
        self._context.destroy(linger=0)

    async def ask_first(self, host: str, port: int, handshake_port: int = 0) -> SideChannelFacts:
        """What rank (0, 0), which every engine has, says about its engine. Raises SideChannelError.

        ``handshake_port``: people say that handshakes are answered there, so the side channel is not asked.
        """
        if handshake_port:
            return (await self._ask_over_http(host, handshake_port, [(0, 0)]))[0].facts
        async with self._connected(host, port) as channel:
            return (await channel.ask(0, 0)).facts

    async def ask_all(self, where: RemoteEngine) -> list[bytes]:
        """The NIXL metadata of every rank of that engine. Raises SideChannelError.

        Rank (0, 0) is asked first. If another engine answers, which may have fewer ranks, no other rank is asked.
        """
        if where.handshake_port and self._key is not None:
            answers = await self._ask_over_http(where.host, where.handshake_port, where.ranks)
            return [_of_engine(where, answer).agent_metadata for answer in answers]
        async with self._connected(where.host, where.port) as channel:
            return [(await _ask_rank(channel, where, rank)).agent_metadata for rank in where.ranks]

    async def _ask_over_http(self, host: str, port: int, ranks: list[tuple[int, int]]) -> list[RankAnswer]:
        if self._key is None:
            raise SideChannelError(
                SideChannelReason.CANNOT_ASK, "a vLLM server is asked with the internal token, and this router has none"
            )
        try:
            told = await ask(host, port, self._key, ranks)
        except HandshakeFailedError as error:
            raise SideChannelError(SideChannelReason.NO_ANSWER, str(error)) from error
        return [parse(place(host, port), (told.payloads[rank], b"")) for rank in ranks]

    @contextlib.asynccontextmanager
    async def _connected(self, host: str, port: int) -> AsyncIterator[_SideChannel]:
        address = await _address(host, port, self._timeout_s)
        try:
            with contextlib.ExitStack() as stack:
                asker = self._context.socket(zmq.REQ)
                stack.callback(asker.close, linger=0)
                asker.setsockopt(zmq.IPV6, 1)
                asker.setsockopt(zmq.MAXMSGSIZE, MAX_ANSWER_BYTES)
                monitor = asker.get_monitor_socket(zmq.Event.CONNECTED | zmq.Event.HANDSHAKE_SUCCEEDED)
                stack.callback(monitor.close, linger=0)
                stack.callback(asker.disable_monitor)
                asker.connect(f"tcp://{address}:{port}")
                yield _SideChannel(place(host, port), asker, monitor, self._timeout_s)
        except zmq.ZMQError as error:
            raise SideChannelError(
                SideChannelReason.NO_ANSWER, f"{place(host, port)} cannot be asked: {error}"
            ) from error


class _SideChannel:
    """A connection to one side channel."""

    def __init__(self, place: str, asker: zmq.asyncio.Socket, monitor: zmq.asyncio.Socket, timeout_s: float) -> None:
        self._place = place
        self._asker = asker
        self._monitor = monitor
        self._timeout_s = timeout_s

    async def ask(self, pp_rank: int, tp_rank: int) -> RankAnswer:
        """Ask about a rank that exists. Raises SideChannelError; nothing can be asked after that."""
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._asker.send(query(pp_rank, tp_rank))
                return parse(self._place, await self._asker.recv_multipart())
        except TimeoutError:
            raise SideChannelError(SideChannelReason.NO_ANSWER, await self._why_silent()) from None

    async def _why_silent(self) -> str:
        seen = set()
        while await self._monitor.poll(0):
            seen.add((await recv_monitor_message(self._monitor))["event"])
        if zmq.Event.HANDSHAKE_SUCCEEDED in seen:
            return (
                f"the side channel of {self._place} takes questions and does not answer within {self._timeout_s:g} s: "
                "restart that vLLM server if this lasts, because its listener dies of a malformed question"
            )
        if zmq.Event.CONNECTED in seen:
            return f"what listens on {self._place} does not speak ZMQ, so it is not vLLM's side channel"
        return (
            f"nothing answers on {self._place} within {self._timeout_s:g} s: set VLLM_NIXL_SIDE_CHANNEL_HOST of that "
            "vLLM server to an address at which routers and decode workers reach it"
        )


async def _ask_rank(channel: _SideChannel, where: RemoteEngine, rank: tuple[int, int]) -> RankAnswer:
    return _of_engine(where, await channel.ask(*rank))


def _of_engine(where: RemoteEngine, answer: RankAnswer) -> RankAnswer:
    if answer.facts.engine_id != where.engine_id:
        raise SideChannelError(
            SideChannelReason.OTHER_ENGINE,
            f"vLLM engine {where.engine_id} is gone: another one answers on {where.host}:{where.port}",
        )
    return answer


async def _address(host: str, port: int, timeout_s: float) -> str:
    """The address of ``host`` as in ZMQ's endpoints. ZMQ would look the name up in its only thread, and delay others.

    IPv4 goes first, because vLLM listens on that where a name has both.
    """
    try:
        async with asyncio.timeout(timeout_s):
            found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, TimeoutError):
        raise SideChannelError(
            SideChannelReason.NO_ANSWER, f"the host {host} of a side channel has no address: is that its right name?"
        ) from None
    family, *_, address = min(found, key=lambda one: one[0] is not socket.AF_INET)
    return f"[{address[0]}]" if family is socket.AF_INET6 else str(address[0])
