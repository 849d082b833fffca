"""The registry in Redis: one key per process that expires by itself, and a channel that carries every change."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Generic, cast

import redis
import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from core.process.clock import monotonic_ms
from core.registry.announcement import MAX_BYTES, EntryT, NotAnAnnouncementError, encode
from core.registry.complaints import Complaints, printable
from core.registry.signature import UntrustedError, check, sign
from core.registry.store import RegistryError
from core.registry.view import RegistryView

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator

    from redis.asyncio.client import PubSub

    from core.registry.announcement import Announcement, Kind

logger = logging.getLogger(__name__)

#: Longest wait for one answer, and for a connection.
DEFAULT_SOCKET_TIMEOUT_S = 2.0
#: The time between two attempts to reach a Redis that is away.
RECONNECT_S = 0.5
#: Where nobody is, nothing runs out and nothing is heard; a watcher looks this often whether it still hears at all.
QUIET_RESYNC_MS = 30_000
#: Keys read at once.
SCAN_COUNT = 1000
#: Keys looked at in all. More than there are processes anywhere, and few enough to be read again and again.
MAX_KEYS = 10_000
#: Why an announcement is ignored, for a metric; ``foreign`` is what no version of ours writes.
IGNORED_REASONS = ("unsigned", "wrong_signature", "foreign")
#: What PTTL answers where there is no such key; it is -1 for one that does not expire.
_NO_KEY = -2
#: Whatever goes wrong with Redis. RuntimeError is uvloop's for a write to a connection that the other side has just
#: closed ("the handler is closed"); redis-py lets it pass, and it would end the task that announces or watches.
_REDIS_ERRORS = (redis.RedisError, OSError, RuntimeError)


class RedisRegistry(Generic[EntryT]):
    """A ``Registry`` of one event loop."""

    def __init__(
        self,
        url: str,
        kind: Kind[EntryT],
        *,
        key: bytes | None = None,
        socket_timeout_s: float = DEFAULT_SOCKET_TIMEOUT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Connects with the first call only. ``key`` signs what is announced here, and what it has not signed is
        ignored. ``clock``, seconds, is for complaints. Raises ValueError for a URL that is none.
        """
        self._kind = kind
        self._key = key
        self._sequence = 0
        self.ignored = Counter(dict.fromkeys(IGNORED_REASONS, 0))
        self._socket_timeout_s = socket_timeout_s
        self._redis = _connect(url, socket_timeout_s, Retry(NoBackoff(), 1, (redis.ConnectionError,)))
        # A subscription must not be repaired silently: what was published in the gap would be missed unnoticed.
        self._ears = _connect(url, socket_timeout_s, Retry(NoBackoff(), 0, ()))
        self._complaints = Complaints(kind.name, clock)

    async def announce(self, entry: EntryT, ttl_ms: int) -> None:
        """Raises RegistryError; ValueError for an id that cannot be part of a key."""
        announcement = self._kind.announce(entry, ttl_ms, self._next_sequence())
        data = self._encode(announcement)
        with _registry_errors():
            async with self._redis.pipeline(transaction=False) as pipe:
                pipe.set(self._kind.key_prefix + announcement.id, data, px=ttl_ms)
                pipe.publish(self._kind.channel, data)
                await pipe.execute()

    async def withdraw(self, gone: str) -> None:
        announcement = self._kind.withdraw(gone, self._next_sequence())
        with _registry_errors():
            async with self._redis.pipeline(transaction=False) as pipe:
                pipe.delete(self._kind.key_prefix + announcement.id)
                pipe.publish(self._kind.channel, self._encode(announcement))
                await pipe.execute()

    async def snapshot(self) -> list[EntryT]:
        view: RegistryView[EntryT] = RegistryView()
        view.merge(await self._read(), monotonic_ms())
        return view.alive()

    async def watch(self) -> AsyncIterator[list[EntryT]]:
        """See the port. A process that fell silent is looked up before it counts as gone.

        After Redis was away, those that it does not know stay for one ttl: they announce themselves again.
        """
        view: RegistryView[EntryT] = RegistryView()
        told: list[EntryT] | None = None
        while True:
            try:
                async with aclosing(self._follow(view)) as changes:
                    async for alive in changes:
                        if alive != told:
                            told = alive
                            yield alive
            except RegistryError as error:
                logger.warning("the registry does not answer, the known %ss stay: %s", self._kind.name, error)
                await self._until_back()

    async def close(self) -> None:
        await self._redis.aclose()
        await self._ears.aclose()

    def _next_sequence(self) -> int:
        if self._key is not None:
            self._sequence += 1
        return self._sequence

    def _encode(self, announcement: Announcement[EntryT]) -> bytes:
        data = encode(announcement)
        return data if self._key is None else sign(self._key, self._kind.name, data)

    async def _follow(self, view: RegistryView[EntryT]) -> AsyncGenerator[list[EntryT], None]:
        """The list after everything that may have changed it, until RegistryError."""
        async with self._subscription() as pubsub:
            view.be_patient(monotonic_ms())
            view.merge(await self._read(), monotonic_ms())
            yield view.alive()
            while True:
                data = await _next_message(pubsub, view.next_expiry_ms())
                if data is None:
                    view.merge(await self._read(), monotonic_ms())
                elif (announcement := self._decode(data, self._kind.channel.encode())) is not None:
                    view.apply(announcement, monotonic_ms())
                yield view.alive()

    @asynccontextmanager
    async def _subscription(self) -> AsyncIterator[PubSub]:
        pubsub = self._ears.pubsub()
        try:
            with _registry_errors():
                await pubsub.subscribe(self._kind.channel)
                if await pubsub.get_message(timeout=self._socket_timeout_s) is None:
                    raise redis.TimeoutError("no answer to SUBSCRIBE")
            yield pubsub
        finally:
            # The connection may be what is broken. Why we leave, perhaps cancelled, matters more than how closing went.
            with suppress(*_REDIS_ERRORS):
                await pubsub.aclose()  # type: ignore[no-untyped-call]

    async def _until_back(self) -> None:
        """Wait until Redis answers again."""
        while True:
            await asyncio.sleep(RECONNECT_S)
            try:
                with _registry_errors():
                    await self._redis.ping()
            except RegistryError:
                continue
            return

    async def _read(self) -> list[tuple[Announcement[EntryT], int]]:
        """Every announcement with the time left of it in ms."""
        with _registry_errors():
            keys = await self._keys()
            if not keys:
                return []
            async with self._redis.pipeline(transaction=False) as pipe:
                for key in keys:
                    pipe.getrange(key, 0, MAX_BYTES)  # one byte more than is allowed, however much is there
                    pipe.pttl(key)
                answers = await pipe.execute(raise_on_error=False)
            _raise_unless_foreign(answers)
        rows = zip(keys, answers[::2], answers[1::2], strict=True)
        return [row for key, value, left_ms in rows if (row := self._row(key, value, left_ms)) is not None]

    async def _keys(self) -> list[bytes]:
        keys: set[bytes] = set()
        cursor, begun = 0, False
        while (cursor or not begun) and len(keys) <= MAX_KEYS:
            cursor, found = await self._redis.scan(cursor, match=self._kind.key_prefix + "*", count=SCAN_COUNT)
            keys.update(cast("list[bytes]", found))
            begun = True
        if len(keys) > MAX_KEYS:
            self._ignore(self._kind.key_prefix.encode(), f"there are more than {MAX_KEYS} keys")
        return sorted(keys)[:MAX_KEYS]

    def _row(
        self, key: bytes, value: bytes | redis.ResponseError, left_ms: int
    ) -> tuple[Announcement[EntryT], int] | None:
        if isinstance(value, redis.ResponseError):
            self._ignore(key, "it is no text")
            return None
        if not value or left_ms in (_NO_KEY, 0):
            return None  # ran out since the scan: before it was read, or between its value and its time
        announcement = self._decode(value, key)
        if announcement is None:
            return None
        if key != (self._kind.key_prefix + announcement.id).encode() or left_ms <= 0:
            self._ignore(key, "it has another's name, or does not expire")
            return None
        return announcement, left_ms

    def _decode(self, data: bytes, place: bytes) -> Announcement[EntryT] | None:
        try:
            return self._kind.decode(self._checked(data))
        except UntrustedError as error:
            self.ignored[error.reason] += 1
            self._complaints.stranger(self._name_of(data, place))
        except NotAnAnnouncementError as error:
            self._ignore(place, str(error))
        return None

    def _checked(self, data: bytes) -> bytes:
        """What was signed. Raises UntrustedError."""
        if self._key is None or len(data) > MAX_BYTES:  # the latter is nothing that is worth reading
            return data
        return check(self._key, self._kind.name, data)

    def _name_of(self, data: bytes, place: bytes) -> str:
        """What the author of an unsigned announcement calls itself, for people."""
        try:
            return self._kind.decode(data).id
        except NotAnAnnouncementError:
            return f"at {printable(place)}"

    def _ignore(self, place: bytes, why: str) -> None:
        self.ignored["foreign"] += 1
        self._complaints.foreign(place, why)


def _connect(url: str, socket_timeout_s: float, retry: Retry) -> redis.asyncio.Redis:
    """Raises ValueError for a URL that is none, or has an option that redis-py would not know until it connects."""
    client = redis.asyncio.Redis.from_url(
        url, socket_timeout=socket_timeout_s, socket_connect_timeout=socket_timeout_s, retry=retry, protocol=2
    )
    pool = client.connection_pool
    try:
        pool.connection_class(**pool.connection_kwargs)
    except (TypeError, redis.RedisError):
        raise ValueError("the URL of Redis has an option that does not exist") from None
    return client


async def _next_message(pubsub: PubSub, until_ms: int | None) -> bytes | None:
    """The next published value; None when ``until_ms`` has come."""
    end_ms = monotonic_ms() + QUIET_RESYNC_MS if until_ms is None else until_ms
    while (left_ms := end_ms - monotonic_ms()) > 0:
        with _registry_errors():
            message: dict[str, Any] | None = await pubsub.get_message(timeout=left_ms / 1000)
        if message is not None and message["type"] == "message":
            return bytes(message["data"])
    return None


def _raise_unless_foreign(answers: list[Any]) -> None:
    """Only that a value is of another type is a matter of that value."""
    for answer in answers:
        if isinstance(answer, Exception) and not str(answer).startswith("WRONGTYPE"):
            raise answer


@contextmanager
def _registry_errors() -> Iterator[None]:
    """Raise RegistryError, and nothing of the library's, for whatever goes wrong with Redis inside the block."""
    try:
        yield
    except _REDIS_ERRORS as error:
        raise RegistryError(" ".join(str(error).split()) or type(error).__name__) from error
