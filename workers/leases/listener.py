"""A thread that listens for releases of one engine's leases."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from baton_serve.core.leases.store import LeaseStore, LeaseStoreError, Wakeups

logger = logging.getLogger(__name__)

#: Timeout in seconds of one wait for a release; nothing depends on it.
WAIT_TIMEOUT_S = 3600.0
#: Seconds between two attempts to subscribe while the store cannot be reached.
RETRY_S = 0.5


class LeaseListener:
    """Calls ``on_release`` in its own thread, soon after every release and whenever a release may have been missed.

    After an unexpected exception the thread calls ``on_failed`` and ends.
    """

    def __init__(
        self,
        store: LeaseStore,
        engine_id: str,
        on_release: Callable[[], None],
        on_failed: Callable[[Exception], None],
    ) -> None:
        self._store = store
        self._engine_id = engine_id
        self._on_release = on_release
        self._on_failed = on_failed
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._wakeups: Wakeups | None = None
        self._thread = threading.Thread(target=self._run, name="lease-listener", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Interrupt the thread, for whose end ``join`` waits. Does nothing if the thread was never started."""
        with self._lock:
            self._stopping.set()
            if self._wakeups is not None:
                self._wakeups.close()

    def join(self) -> None:
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                try:
                    self._listen()
                except LeaseStoreError:
                    self._stopping.wait(RETRY_S)  # not logged here: the keeper calls the same store, and logs the error
        except Exception as error:
            logger.exception("releases cannot be heard")
            self._on_failed(error)

    def _listen(self) -> None:
        wakeups = self._store.wakeups(self._engine_id)
        with self._lock:
            self._wakeups = wakeups
        try:
            self._on_release()  # a release before the subscription would be missed
            while not self._stopping.is_set():
                if wakeups.wait(WAIT_TIMEOUT_S):
                    self._on_release()
        finally:
            wakeups.close()
