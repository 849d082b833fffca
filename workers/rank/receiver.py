"""The rank's end of the socket to the main process: what sends messages, and the thread that receives them.

The thread passes steps to the main thread, all others to block transfer or the grammars. Thanks to it a connect, a read
or a new grammar does not wait for a running forward pass.
"""

from __future__ import annotations

import os
import queue
import socket
import threading

import msgspec

from baton_serve.core.process.frames import encode, receive
from baton_serve.core.protocol.steps import (
    CompileGrammar,
    ForgetGrammar,
    FromRank,
    RankFailed,
    Shutdown,
    Step,
    ToRank,
    Vocabulary,
)
from baton_serve.workers.rank.grammar.library import GrammarLibrary
from baton_serve.workers.rank_protocol.errors import one_line
from baton_serve.workers.transfer.port import Transfer

_TO_RANK: msgspec.msgpack.Decoder[ToRank] = msgspec.msgpack.Decoder(ToRank)


class Outbox:
    """Writes whole frames to the rank's socket. Messages are dropped once the main process has ended."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._lock = threading.Lock()

    def send(self, message: FromRank) -> None:
        """Send a message; blocks while the main process does not read."""
        frame = encode(message)
        try:
            with self._lock:
                self._sock.sendall(frame)
        except (BrokenPipeError, ConnectionResetError):
            return


class Receiver:
    """Reads the socket until it is closed. ``steps`` gets the steps and what is to be done in order with them, and None
    at the end.
    """

    def __init__(self, sock: socket.socket, outbox: Outbox) -> None:
        self.steps: queue.SimpleQueue[Step | ForgetGrammar | None] = queue.SimpleQueue()
        self._stream = sock.makefile("rb")
        self._outbox = outbox
        self._transfer: Transfer | None = None
        self._grammars: GrammarLibrary | None = None
        self._thread = threading.Thread(target=self._run, name="receiver", daemon=True)

    def start(self) -> None:
        """Start the thread. Until ``serve`` is called, the process ends at once if the connection is closed."""
        self._thread.start()

    def serve(self, transfer: Transfer, grammars: GrammarLibrary) -> None:
        """Pass commands to ``transfer`` and ``grammars`` from now on. Call it before ``RankReady`` is sent."""
        self._grammars = grammars
        self._transfer = transfer

    def end(self) -> None:
        """Let the main thread finish the queued steps and then exit."""
        self.steps.put(None)

    def _run(self) -> None:
        try:
            while (message := receive(self._stream, _TO_RANK)) is not None and not isinstance(message, Shutdown):
                if isinstance(message, Step | ForgetGrammar):
                    self.steps.put(message)
                elif isinstance(message, Vocabulary | CompileGrammar):
                    if self._grammars is not None:
                        self._grammars.submit(message)
                elif self._transfer is not None:
                    self._transfer.submit(message)
        except (OSError, msgspec.DecodeError) as error:
            self._outbox.send(RankFailed(one_line(error)))
        if self._transfer is None:
            # The main thread is loading the model, and there is nothing to clean up.
            os._exit(0)
        self.end()
