"""Fetches the metadata of a remote engine's ranks and checks it. Every failure is a HandshakeError."""

from __future__ import annotations

import asyncio
import ipaddress
import re
import ssl
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from baton_serve.core.net.tls import InternalTls, why
from baton_serve.core.protocol.handoff import KVTransferParams
from baton_serve.core.protocol.handshake import WIRE_VERSION, Handshake, RankMetadata
from baton_serve.workers.handshake.http import Answer, BadAnswerError, Place, get
from baton_serve.workers.handshake.resolver import Resolver
from baton_serve.workers.limits import MAX_RANKS
from baton_serve.workers.rank_protocol.transfer_errors import HandshakeError, HandshakeReason

T = TypeVar("T")

#: Most bytes of an answer, which usually has about 1 KB, and more with each network device.
MAX_ANSWER_BYTES = 2**20
#: Most ranks of one engine that are asked at once; and most connections for that in total, in addition to one
#: connection per engine. Engines that hang must not use up the file descriptors of this process.
MAX_RANKS_AT_ONCE = 8
MAX_EXTRA_CONNECTIONS = 128
#: Host names as in DNS and compose files. No character that could end the authority part of a URL.
_HOST_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9_])?")


class Target(msgspec.Struct, frozen=True):
    """The remote engine of a hand-off."""

    engine_id: str
    host: str
    port: int
    num_ranks: int


def target_of(params: KVTransferParams) -> Target:
    """The engine that a checked hand-off names. Raises HandshakeError if its host or sizes are impossible.

    The internal token is sent to this host, so ``remote_host`` must be a host and nothing else.
    """
    if not _is_host(params.remote_host):
        raise HandshakeError(HandshakeReason.BAD_ADDRESS, "remote_host is neither a host name nor an address")
    tp_size, pp_size = params.tp_size, params.pp_size
    if tp_size < 1 or pp_size < 1 or tp_size * pp_size > MAX_RANKS or params.dcp_size != 1:
        sizes = f"tp_size {tp_size}, pp_size {pp_size}, dcp_size {params.dcp_size}"
        raise HandshakeError(HandshakeReason.INCOMPATIBLE, f"cannot read from an engine of {sizes}")
    # Each rank's metadata says which part of the model that rank holds.
    return Target(params.remote_engine_id, params.remote_host, params.remote_port, tp_size * pp_size)


class HandshakeFetcher:
    """The client of handshake servers. ``fetch`` has no timeout of its own; use ``asyncio.timeout``.

    ``try_s``: seconds to connect to an address before the next address of the host is tried.
    """

    def __init__(
        self,
        token: str | None,
        compatibility_hash: str,
        *,
        resolver: Resolver,
        try_s: float,
        tls: InternalTls | None = None,
    ) -> None:
        self._authorization = f"Bearer {token}".encode() if token else b""
        self._compatibility_hash = compatibility_hash
        self._resolver = resolver
        self._try_s = try_s
        self._tls = tls
        self._num_extra = 0

    async def fetch(self, target: Target) -> list[RankMetadata]:
        """The metadata of all ranks, in order. Raises HandshakeError with the first failure.

        Rank 0 is asked first, and the others concurrently once it has answered. So an engine that hangs costs one
        connection.
        """
        try:
            addresses = await self._resolver.addresses(target.host)
        except OSError as error:
            raise HandshakeError(HandshakeReason.REFUSED, f"{target.host}: {error}") from error
        place = Place(target.host, target.port, addresses, self._try_s, self._tls)
        answer = await self._get(place, 0)
        first = self._check(target, 0, answer.body)
        return [first, *await self._fetch_others(target, replace(place, addresses=(answer.address,)))]

    async def _fetch_others(self, target: Target, place: Place) -> list[RankMetadata]:
        ranks, found = iter(range(1, target.num_ranks)), dict[int, RankMetadata]()

        async def fetch_in_turn() -> None:
            for rank in ranks:
                answer = await self._get(place, rank)
                found[rank] = self._check(target, rank, answer.body)

        wanted = min(MAX_RANKS_AT_ONCE, target.num_ranks - 1) - 1
        # Without extra connections the ranks are asked one after the other, but never wait for other engines.
        num_extra = max(0, min(wanted, MAX_EXTRA_CONNECTIONS - self._num_extra))
        self._num_extra += num_extra
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(1 + num_extra):
                    group.create_task(fetch_in_turn())
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        finally:
            self._num_extra -= num_extra
        return [found[rank] for rank in range(1, target.num_ranks)]

    async def _get(self, place: Place, rank: int) -> Answer:
        path = f"/kv/handshake/{rank}"
        where = f"{place.host} port {place.port}, {path}"
        try:
            answer = await get(place, path, self._authorization, MAX_ANSWER_BYTES)
        except BadAnswerError as error:
            raise HandshakeError(HandshakeReason.GARBAGE, f"{where}: {error}") from error
        except ssl.SSLError as error:
            raise HandshakeError(HandshakeReason.REFUSED, f"{where}: {why(error)}") from error
        except OSError as error:
            raise HandshakeError(HandshakeReason.REFUSED, f"{where}: {error}") from error
        if answer.status in {401, 403}:
            raise HandshakeError(HandshakeReason.UNAUTHORIZED, f"{where} does not accept our internal token")
        if answer.status != 200:
            raise HandshakeError(HandshakeReason.REFUSED, f"{where} answers {answer.status}")
        return answer

    def _check(self, target: Target, rank: int, answer: bytes) -> RankMetadata:
        handshake = _decode(answer, Handshake)
        if handshake.wire_version != WIRE_VERSION:
            versions = f"wire version {handshake.wire_version} there, {WIRE_VERSION} here"
            raise HandshakeError(HandshakeReason.INCOMPATIBLE, versions)
        if handshake.engine_id != target.engine_id:
            raise HandshakeError(HandshakeReason.WRONG_ENGINE, f"another engine than {target.engine_id} is there now")
        if handshake.compatibility_hash != self._compatibility_hash:
            hashes = (
                f"compatibility hash {handshake.compatibility_hash[:64]!r} there, {self._compatibility_hash!r} here"
            )
            raise HandshakeError(HandshakeReason.INCOMPATIBLE, hashes)
        metadata = _decode(handshake.metadata, RankMetadata)
        if metadata.num_ranks != target.num_ranks:
            sizes = f"the hand-off speaks of {target.num_ranks} ranks, the engine has {metadata.num_ranks}"
            raise HandshakeError(HandshakeReason.INCOMPATIBLE, sizes)
        if (metadata.engine_id, metadata.rank) != (target.engine_id, rank):
            raise HandshakeError(HandshakeReason.GARBAGE, "the metadata is that of another rank")
        return metadata


def _decode(data: bytes, kind: type[T]) -> T:
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise HandshakeError(HandshakeReason.GARBAGE, f"not a {kind.__name__}: {error}") from error


def _is_host(host: str) -> bool:
    if _HOST_NAME.fullmatch(host):
        return True
    try:
        return ipaddress.IPv6Address(host).scope_id is None
    except ValueError:
        return False
