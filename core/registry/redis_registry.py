"""The registry in Redis: one expiring key per process, and a channel on which every announcement is published."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from typing import Any, Generic

import redis
import redis.asyncio
from redis.asyncio.client import PubSub

from baton_serve.core.process.clock import monotonic_ms
from baton_serve.core.process.log_pace import OncePerMinute
from baton_serve.core.redis_client import aclose, connect
from baton_serve.core.registry.announcement import MAX_BYTES, Announcement, EntryT, Kind, NotAnAnnouncementError, encode
from baton_serve.core.registry.signature import UntrustedError, sign, verify
from baton_serve.core.registry.store import REPEAT_MS, RegistryError
from baton_serve.core.registry.view import RegistryView

logger = logging.getLogger(__name__)

#: Longest wait for an answer or a connection.
DEFAULT_SOCKET_TIMEOUT_S = 2.0
#: Seconds between two attempts to reach Redis.
RECONNECT_S = 0.5
#: While the registry is empty, no entry expires and no message comes. A watcher reads the keys this often, to notice a
#: lost connection.
QUIET_RESYNC_MS = 30_000
#: The COUNT of SCAN: how many keys Redis looks at in one call.
SCAN_COUNT = 1000
#: Keys read at most: more than there are processes anywhere, and few enough to be read repeatedly.
MAX_KEYS = 10_000
#: Why an announcement is ignored, as a label of a metric. ``foreign``: no version of Baton writes it.
IGNORED_REASONS = ("unsigned", "wrong_signature", "foreign")
#: Least time between two lists that ``watch`` yields. An idle worker announces itself four times a second, and a busy
#: one at each begin and end of a request, up to fifty times a second (``MIN_GAP_S`` of the announcer). With 1,000 idle
#: workers, a list for each announcement took all of a router's core.
LIST_GAP_MS = 20
#: Most keys or channels for which a value that is not Baton's is logged.
MAX_COMPLAINTS = 100
#: The answer of PTTL if there is no such key. (PTTL answers -1 for a key that does not expire.)
_NO_KEY = -2
#: Every error of a call to Redis. uvloop raises RuntimeError ("the handler is closed") for a write to a connection that
#: the other side has just closed; redis-py does not convert it, and it would end the task that announces or watches.
_REDIS_ERRORS = (redis.RedisError, OSError, RuntimeError)


class Complaints:
    """The warnings of a registry of one kind, limited: a writer to Redis must not be able to fill the log."""

    def __init__(self, kind: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._kind = kind
        self._places: set[bytes] = set()
        self._untrusted = OncePerMinute(clock)

    def foreign(self, place: bytes, why: str) -> None:
        """Warn that another program wrote a value: once for each ``place`` (key or channel), which is read often."""
        if place not in self._places and len(self._places) < MAX_COMPLAINTS:
            self._places.add(place)
            logger.warning("ignored a foreign value in the registry at %s: %s", _printable(place), why)

    def untrusted(self, who: str) -> None:
        """Warn of an announcement without a valid signature: once a minute, with the number since the last warning."""
        num_new = self._untrusted.due()
        if not num_new:
            return
        logger.warning(
            "ignored %s %s: its announcement is not signed with this router's internal token%s",
            self._kind,
            who,
            f" ({num_new} such announcements since the last line)" if num_new > 1 else "",
        )


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
        """Does not connect before the first call. With a ``key``, announcements are signed, and others are
        ignored. ``clock`` returns seconds and limits the log. Raises ValueError if ``url`` is not a valid Redis URL.
        """
        self._kind = kind
        self._key = key
        self._sequence = 0
        self.ignored = Counter(dict.fromkeys(IGNORED_REASONS, 0))
        self.on_withdrawn: list[Callable[[EntryT], None]] = []
        self._socket_timeout_s = socket_timeout_s
        self._redis = connect(redis.asyncio.Redis, url, socket_timeout_s, retries=1)
        # A subscription must not reconnect by itself: messages published before the new SUBSCRIBE would be missed.
        self._pubsub_client = connect(redis.asyncio.Redis, url, socket_timeout_s, retries=0)
        self._complaints = Complaints(kind.name, clock)

    async def announce(self, entry: EntryT, ttl_ms: int) -> None:
        """Write and publish the entry. Raises RegistryError, and ValueError for an id that cannot be part of a key."""
        announcement = self._kind.announce(entry, ttl_ms, self._next_sequence())
        data = self._encode(announcement)
        with _registry_errors():
            async with self._redis.pipeline(transaction=False) as pipe:
                pipe.set(self._kind.key_prefix + announcement.id, data, px=ttl_ms)
                pipe.publish(self._kind.channel, data)
                await pipe.execute()

    async def withdraw(self, process_id: str) -> None:
        announcement = self._kind.withdraw(process_id, self._next_sequence())
        with _registry_errors():
            async with self._redis.pipeline(transaction=False) as pipe:
                pipe.delete(self._kind.key_prefix + announcement.id)
                pipe.publish(self._kind.channel, self._encode(announcement))
                await pipe.execute()

    async def watch(self) -> AsyncIterator[list[EntryT]]:
        """See the port. Before a process whose announcements stop counts as gone, its key is read once more.

        Once Redis can be reached again, a process without a key stays for one ttl, in which it will announce itself.
        """
        view: RegistryView[EntryT] = RegistryView()
        last: list[EntryT] | None = None
        repeat_ms = 0
        is_away = False
        while True:
            try:
                async with aclosing(self._follow(view)) as changes:
                    async for alive in changes:
                        if is_away:
                            logger.info("the registry answers again, the %ss are known", self._kind.name)
                            is_away = False
                        now_ms = monotonic_ms()
                        if alive != last or now_ms >= repeat_ms:
                            last, repeat_ms = alive, now_ms + REPEAT_MS
                            yield alive
            except RegistryError as error:
                logger.warning("the registry does not answer, the known %ss stay: %s", self._kind.name, error)
                is_away = True
                await self._until_back()

    async def close(self) -> None:
        await aclose(self._redis)
        await aclose(self._pubsub_client)

    def _next_sequence(self) -> int:
        if self._key is not None:
            self._sequence += 1
        return self._sequence

    def _encode(self, announcement: Announcement[EntryT]) -> bytes:
        data = encode(announcement)
        return data if self._key is None else sign(self._key, self._kind.name, data)

    async def _follow(self, view: RegistryView[EntryT]) -> AsyncGenerator[list[EntryT], None]:
        """Yield the list after what may have changed it: one event, or all that came in ``LIST_GAP_MS`` together.

        Ends only by RegistryError.
        """
        async with self._subscription() as pubsub:
            view.restart_ttls(monotonic_ms())
            view.merge(await self._read(), monotonic_ms())
            yield view.alive()
            while True:
                next_list_ms = monotonic_ms() + LIST_GAP_MS
                data = await _next_message(pubsub, view.next_expiry_ms())
                if data is None:
                    view.merge(await self._read(), monotonic_ms())
                else:
                    self._apply(view, data)
                # It reads all the time, because asyncio reads no more than 128 KiB ahead: a router that slept instead
                # would fall behind many busy workers, until Redis closes the connection.
                while (data := await _next_message(pubsub, next_list_ms)) is not None:
                    self._apply(view, data)
                yield view.alive()

    def _apply(self, view: RegistryView[EntryT], data: bytes) -> None:
        announcement = self._decode(data, self._kind.channel.encode())
        withdrawn = None if announcement is None else view.apply(announcement, monotonic_ms())
        if withdrawn is not None:
            for listener in self.on_withdrawn:
                listener(withdrawn)

    @asynccontextmanager
    async def _subscription(self) -> AsyncIterator[PubSub]:
        pubsub = self._pubsub_client.pubsub()
        try:
            with _registry_errors():
                await pubsub.subscribe(self._kind.channel)
                if await pubsub.get_message(timeout=self._socket_timeout_s) is None:
                    raise redis.TimeoutError("no answer to SUBSCRIBE")
            yield pubsub
        finally:
            # The connection may be broken. The exception that ended the block matters more than an error in closing the
            # connection.
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
        """Every announcement in Redis, each with its remaining time in ms. Raises RegistryError."""
        with _registry_errors():
            keys = await self._keys()
            if not keys:
                return []
            async with self._redis.pipeline(transaction=False) as pipe:
                for key in keys:
                    pipe.getrange(key, 0, MAX_BYTES)  # one byte more than is allowed, so that a longer value is noticed
                    pipe.pttl(key)
                answers = await pipe.execute(raise_on_error=False)
            _raise_unless_foreign(answers)
        rows = zip(keys, answers[::2], answers[1::2], strict=True)
        return [row for key, value, left_ms in rows if (row := self._row(key, value, left_ms)) is not None]

    async def _keys(self) -> list[bytes]:
        keys: set[bytes] = set()
        async for key in self._redis.scan_iter(match=self._kind.key_prefix + "*", count=SCAN_COUNT):
            keys.add(key)
            if len(keys) > MAX_KEYS:
                self._ignore(self._kind.key_prefix.encode(), f"there are more than {MAX_KEYS} keys")
                break
        return sorted(keys)[:MAX_KEYS]

    def _row(
        self, key: bytes, value: bytes | redis.ResponseError, left_ms: int
    ) -> tuple[Announcement[EntryT], int] | None:
        if isinstance(value, redis.ResponseError):
            self._ignore(key, "it is no text")
            return None
        if not value or left_ms in (_NO_KEY, 0):
            return None  # the key has expired since the scan
        announcement = self._decode(value, key)
        if announcement is None:
            return None
        if key != (self._kind.key_prefix + announcement.id).encode() or left_ms <= 0:
            self._ignore(key, "it has another's name, or does not expire")
            return None
        return announcement, left_ms

    def _decode(self, data: bytes, place: bytes) -> Announcement[EntryT] | None:
        is_long = len(data) > MAX_BYTES  # then ``decode`` rejects it
        try:
            return self._kind.decode(data if self._key is None or is_long else verify(self._key, self._kind.name, data))
        except UntrustedError as error:
            self.ignored[error.reason] += 1
            self._complaints.untrusted(self._name_of(data, place))
        except NotAnAnnouncementError as error:
            self._ignore(place, str(error))
        return None

    def _name_of(self, data: bytes, place: bytes) -> str:
        """The id in an untrusted announcement, or else its place, for the log."""
        try:
            return self._kind.decode(data).id
        except NotAnAnnouncementError:
            return f"at {_printable(place)}"

    def _ignore(self, place: bytes, why: str) -> None:
        self.ignored["foreign"] += 1
        self._complaints.foreign(place, why)


def _printable(place: bytes) -> str:
    """The key as text for the log: at most 200 bytes of it, and escaped unless all of it is printable."""
    text = place[:200].decode(errors="backslashreplace")
    return text if text.isprintable() else ascii(text)


async def _next_message(pubsub: PubSub, until_ms: int | None) -> bytes | None:
    """Returns the next published value; None if there is none until ``until_ms``, by default for QUIET_RESYNC_MS.
    Raises RegistryError.
    """
    end_ms = monotonic_ms() + QUIET_RESYNC_MS if until_ms is None else until_ms
    while (left_ms := end_ms - monotonic_ms()) > 0:
        with _registry_errors():
            message: dict[str, Any] | None = await pubsub.get_message(timeout=left_ms / 1000)
        if message is not None and message["type"] == "message":
            return bytes(message["data"])
    return None


def _raise_unless_foreign(answers: list[Any]) -> None:
    """Raise the first error, except WRONGTYPE: WRONGTYPE concerns only one key, which another program wrote."""
    for answer in answers:
        if isinstance(answer, Exception) and not str(answer).startswith("WRONGTYPE"):
            raise answer


@contextmanager
def _registry_errors() -> Iterator[None]:
    """Raise RegistryError instead of any exception of redis-py inside the block."""
    try:
        yield
    except _REDIS_ERRORS as error:
        raise RegistryError(" ".join(str(error).split()) or type(error).__name__) from error
