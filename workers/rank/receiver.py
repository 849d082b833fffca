"""The rank's receiver thread: steps go to the main thread's queue, everything about reads to the transfer.

So a connect or a read does not wait for the forward pass that happens to run.
"""

from __future__ import annotations

import os
import queue
import threading
from typing import TYPE_CHECKING

from core.protocol.steps import RankFailed, Shutdown, Step
from workers.rank_protocol.errors import FrameError, one_line
from workers.rank_protocol.frames import receive

if TYPE_CHECKING:
    import socket

    from workers.rank.outbox import Outbox
    from workers.transfer.port import Transfer


class Receiver:
    """Reads the socket until it ends. ``steps`` yields the steps in order, then None once."""

    def __init__(self, sock: socket.socket, outbox: Outbox) -> None:
        self.steps: queue.SimpleQueue[Step | None] = queue.SimpleQueue()
        self._sock = sock
        self._outbox = outbox
        self._transfer: Transfer | None = None
        self._thread = threading.Thread(target=self._run, name="receiver", daemon=True)

    def start(self) -> None:
        """Listen. Until ``serve`` is called, an end of the connection ends the process: it is still loading."""
        self._thread.start()

    def serve(self, transfer: Transfer) -> None:
        """From now on commands go to ``transfer``. To be called before the scheduler is told that the rank is ready."""
        self._transfer = transfer

    def end(self) -> None:
        """Let the main thread finish what is queued, then leave."""
        self.steps.put(None)

    def _run(self) -> None:
        try:
            while (message := receive(self._sock)) is not None and not isinstance(message, Shutdown):
                if isinstance(message, Step):
                    self.steps.put(message)
                elif self._transfer is not None:
                    self._transfer.submit(message)
        except (OSError, FrameError) as error:
            self._outbox.send(RankFailed(one_line(error)))
        if self._transfer is None:
            # The main thread is deep in loading and has nothing to put in order.
            os._exit(0)
        self.end()
