"""P's wake-ups through Redis: a subscription to releases, on a connection of its own."""

from __future__ import annotations

import os
import select
import threading
import time

import redis
from redis.client import PubSub

from baton_serve.core.leases.in_redis.lua_script import lease_store_errors


class RedisWakeups:
    """``Wakeups`` over pub/sub. One thread calls ``wait``; any thread may call ``close``.

    Redis delivers at most once. After LeaseStoreError from ``wait`` releases may have been missed, so the caller
    subscribes again and reaps.
    """

    def __init__(self, client: redis.Redis, channel: str, subscribe_timeout_s: float) -> None:
        """Returns once Redis has confirmed the subscription. ``client`` must not reconnect by itself.

        Raises LeaseStoreError.
        """
        self._pubsub: PubSub = client.pubsub()  # type: ignore[no-untyped-call]
        # For close() to interrupt a wait: it is not safe to close a socket from which another thread reads.
        self._interrupt = os.eventfd(0, os.EFD_CLOEXEC)
        self._lock = threading.Lock()
        self._waiting = False
        self._closed = False
        try:
            with lease_store_errors():
                self._pubsub.subscribe(channel)
                if self._pubsub.get_message(timeout=subscribe_timeout_s) is None:
                    raise redis.TimeoutError("no answer to SUBSCRIBE")
        except BaseException:
            self.close()
            raise

    def wait(self, timeout_s: float) -> bool:
        """See ``Wakeups``. Several releases since the last call return once."""
        with self._lock:
            if self._closed:
                return False
            self._waiting = True
        try:
            with lease_store_errors():
                return self._wait(timeout_s) and not self._closed
        finally:
            self._end_wait()

    def close(self) -> None:
        """Stop listening. A wait in progress closes the connection and returns False."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            if self._waiting:
                os.eventfd_write(self._interrupt, 1)
            else:
                self._disconnect()

    def _wait(self, timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        poll = select.poll()  # unlike select(), it takes descriptors above 1023
        poll.register(self._socket_fd(), select.POLLIN)
        poll.register(self._interrupt, select.POLLIN)
        while not (woken := self._drain()) and (left_s := deadline - time.monotonic()) > 0:
            if any(fd == self._interrupt for fd, _ in poll.poll(left_s * 1000)):
                return False
        return woken

    def _drain(self) -> bool:
        """Take every message that has arrived, also those in a TLS buffer; returns whether one was a release."""
        woken = False
        while (message := self._pubsub.get_message(timeout=0)) is not None:
            woken = woken or message["type"] == "message"
        return woken

    def _socket_fd(self) -> int:
        # redis-py offers no public way to wait for its socket together with something else.
        sock = getattr(self._pubsub.connection, "_sock", None)
        if sock is None:
            raise redis.ConnectionError("the subscription's connection is gone")
        return int(sock.fileno())

    def _end_wait(self) -> None:
        with self._lock:
            self._waiting = False
            if self._closed:
                self._disconnect()

    def _disconnect(self) -> None:
        os.close(self._interrupt)
        self._pubsub.close()
