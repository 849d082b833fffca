"""Asks the side channel of a vLLM server, with well-formed questions about ranks that exist, and nothing else.

vLLM's listener is one thread without a net: a question that it cannot decode, or about a rank that it does not have,
ends it for good, and with it every later handshake of that server. A server that answers handshakes over HTTP is asked
there, if this router has the token: its side channel may be closed.

The listener speaks ZMQ. A question needs so little of that protocol (ZMTP 3.0, rfc.zeromq.org/spec/23, without
security) that it is written here: ZMQ's library has threads of its own, and ends the process when it has no room.
"""

from __future__ import annotations

import asyncio
import socket

from baton_serve.core.net.vllm_handshakes import MAX_ANSWER_BYTES, MAX_ANSWERS_BYTES, HandshakeFailedError, ask
from baton_serve.core.protocol.vllm_handshake import place
from baton_serve.router.vllm.leases.remote_engine import RemoteEngine
from baton_serve.router.vllm.leases.side_channel_facts import (
    RankAnswer,
    SideChannelError,
    SideChannelFacts,
    SideChannelReason,
    parse,
    query,
)

#: Longest wait for one answer, seconds. The same as vLLM's own decode workers have.
TIMEOUT_S = 5.0
#: Frames of an answer, of which vLLM's has three, and commands between them.
_MAX_FRAMES = 16
#: What the first byte of a frame says: another one follows, its length has eight bytes, it is a command.
_MORE, _LONG, _COMMAND = 1, 2, 4
#: The version, and that there is no security.
_GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(52, b"\0")
_READY = b"\x05READY"
_WE_ASK = _READY + b"\x0bSocket-Type" + b"\x00\x00\x00\x03REQ"


class SideChannels:
    """All side channels, any number of them at once."""

    def __init__(self, key: bytes | None = None, timeout_s: float = TIMEOUT_S) -> None:
        """``key``: of the proofs with which servers are asked over HTTP where a port for that is known; None: none is.

        ``timeout_s``: longest wait for one answer.
        """
        self._key = key
        self._timeout_s = timeout_s

    async def ask_first(self, host: str, port: int, handshake_port: int = 0) -> SideChannelFacts:
        """What rank (0, 0), which every engine has, says about its engine. Raises SideChannelError.

        ``handshake_port``: the port that is asked over HTTP instead of the side channel; 0: none.
        """
        if handshake_port:
            return (await self._ask_over_http(host, handshake_port, [(0, 0)]))[0].facts
        channel = _SideChannel(host, port, self._timeout_s)
        try:
            return (await channel.ask(0, 0)).facts
        finally:
            channel.close()

    async def ask_all(self, where: RemoteEngine) -> list[bytes]:
        """The NIXL metadata of every rank of that engine. Raises SideChannelError.

        Rank (0, 0) is asked first. If another engine answers, which may have fewer ranks, no other rank is asked.
        """
        gathered = _Metadata(where)
        if where.handshake_port and self._key is not None:
            for ranks in filter(None, (where.ranks[:1], where.ranks[1:])):
                for answer in await self._ask_over_http(where.host, where.handshake_port, ranks):
                    gathered.add(answer)
            return gathered.found
        channel = _SideChannel(where.host, where.port, self._timeout_s)
        try:
            for rank in where.ranks:
                gathered.add(await channel.ask(*rank))
        finally:
            channel.close()
        return gathered.found

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


class _SideChannel:
    """A connection to one side channel, made by the first question."""

    def __init__(self, host: str, port: int, timeout_s: float) -> None:
        self._host = host
        self._port = port
        self._place = place(host, port)
        self._timeout_s = timeout_s
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        #: The error's message if nothing more comes, and if the server closes the connection. An empty ``_why_closed``
        #: stands for ``_why_silent``.
        self._why_closed = ""
        self._why_silent = f"the host {host} of a side channel has no address: is that its right name?"

    async def ask(self, pp_rank: int, tp_rank: int) -> RankAnswer:
        """Ask about a rank that exists. Raises SideChannelError; nothing can be asked after that."""
        try:
            async with asyncio.timeout(self._timeout_s):
                reader, writer = self._streams or await self._connected()
                writer.write(_frame(_MORE, b"") + _frame(0, query(pp_rank, tp_rank)))
                frames = await _message(reader)
        except TimeoutError:
            raise SideChannelError(SideChannelReason.NO_ANSWER, self._why_silent) from None
        except (OSError, EOFError):
            raise SideChannelError(SideChannelReason.NO_ANSWER, self._why_closed or self._why_silent) from None
        return parse(self._place, frames)

    def close(self) -> None:
        """End the connection."""
        if self._streams is not None:
            self._streams[1].transport.abort()

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        found = await asyncio.get_running_loop().getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        # vLLM listens on IPv4 where a name has both.
        *_, address = min(found, key=lambda one: one[0] is not socket.AF_INET)
        self._why_silent = (
            f"nothing answers on {self._place}: set VLLM_NIXL_SIDE_CHANNEL_HOST of that vLLM server to an address at "
            "which routers and decode workers reach it"
        )
        try:
            reader, writer = self._streams = await asyncio.open_connection(str(address[0]), self._port)
        except OSError as error:
            if not isinstance(error, ConnectionError):
                self._why_silent = f"{self._place} cannot be asked: {error}"
            raise
        self._why_silent = f"what listens on {self._place} does not speak ZMQ, so it is not vLLM's side channel"
        writer.write(_GREETING)
        greeting = await reader.readexactly(len(_GREETING))
        if greeting[:1] != _GREETING[:1] or greeting[10] < _GREETING[10]:
            raise EOFError
        writer.write(_frame(_COMMAND, _WE_ASK))
        _, command = await _read_frame(reader)
        if not command.startswith(_READY):
            raise EOFError
        self._why_closed = f"the side channel of {self._place} closed the connection, or answered what is no answer"
        self._why_silent = (
            f"the side channel of {self._place} takes questions and does not answer within {self._timeout_s:g} s: "
            "restart that vLLM server if this lasts, because its listener dies of a malformed question"
        )
        return reader, writer


def _frame(flags: int, body: bytes) -> bytes:
    """A frame of less than 256 bytes."""
    return bytes((flags, len(body))) + body


async def _read_frame(reader: asyncio.StreamReader, max_bytes: int = 255) -> tuple[int, bytes]:
    """The flags and the body of the next frame. Raises EOFError for a longer one, as for none."""
    (flags,) = await reader.readexactly(1)
    num_bytes = int.from_bytes(await reader.readexactly(8 if flags & _LONG else 1))
    if num_bytes > max_bytes:
        raise EOFError
    return flags, await reader.readexactly(num_bytes)


async def _message(reader: asyncio.StreamReader) -> list[bytes]:
    """The frames of the next message behind the empty one with which every answer begins. Raises EOFError."""
    frames: list[bytes] = []
    left = MAX_ANSWER_BYTES
    for _ in range(_MAX_FRAMES):
        flags, body = await _read_frame(reader, left)
        left -= len(body)
        if flags & _COMMAND:
            continue
        frames.append(body)
        if not flags & _MORE:
            return frames[1:]
    raise EOFError


class _Metadata:
    """The NIXL metadata of the ranks of one engine."""

    def __init__(self, where: RemoteEngine) -> None:
        self._where = where
        self._left_bytes = MAX_ANSWERS_BYTES
        self.found: list[bytes] = []

    def add(self, answer: RankAnswer) -> None:
        """Add the metadata of the next rank.

        Raises SideChannelError if another engine has answered, or the ranks together say too much.
        """
        where = self._where
        if answer.facts.engine_id != where.engine_id:
            raise SideChannelError(
                SideChannelReason.OTHER_ENGINE,
                f"vLLM engine {where.engine_id} is gone: another one answers on {where.host}:{where.port}",
            )
        self._left_bytes -= len(answer.agent_metadata)
        if self._left_bytes < 0:
            raise SideChannelError(
                SideChannelReason.OTHER_VERSION,
                f"the ranks of {where.host}:{where.port} say more than {MAX_ANSWERS_BYTES} bytes for NIXL",
            )
        self.found.append(answer.agent_metadata)
