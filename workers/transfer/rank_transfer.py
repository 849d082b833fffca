"""Block transfer of a rank: a thread that owns the NIXL agent, and a queue of commands to it.

The forward pass runs in another thread. NIXL releases the GIL while it copies, so neither delays the other.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future

from baton_serve.core.protocol.handshake import RankMetadata
from baton_serve.core.protocol.steps import RankFailed
from baton_serve.workers.rank_protocol.spec import TransferOptions
from baton_serve.workers.rank_protocol.transfer_errors import TransferError
from baton_serve.workers.transfer.agent_loop import AgentLoop
from baton_serve.workers.transfer.nixl.nixl_agent import NixlAgent
from baton_serve.workers.transfer.nixl.port import TransferAgent
from baton_serve.workers.transfer.port import Emit, RankMemory, TransferCommand, TransferEvent

logger = logging.getLogger(__name__)


class RankTransfer:
    """``Transfer`` over NIXL; ``workers/transfer/port.py`` has the contract.

    The constructor returns once the agent runs (half a second), and raises TransferError if the start fails. ``emit``
    is called from the agent's thread. ``make_agent`` is for tests. ``on_thread_start`` is called first in that thread,
    for example to choose the CUDA device. The process needs the environment variables of ``core.ucx``.
    """

    def __init__(
        self,
        memory: RankMemory,
        emit: Emit,
        options: TransferOptions | None = None,
        *,
        make_agent: Callable[[str], TransferAgent] = NixlAgent,
        on_thread_start: Callable[[], None] | None = None,
    ) -> None:
        self._memory = memory
        self._emit = emit
        self._options = options or TransferOptions()
        self._make_agent = make_agent
        self._on_thread_start = on_thread_start
        self._commands: queue.SimpleQueue[TransferCommand | None] = queue.SimpleQueue()
        self._closing = threading.Event()
        started: Future[RankMetadata] = Future()
        self._thread = threading.Thread(target=self._run, args=(started,), name="nixl", daemon=True)
        self._thread.start()
        self._metadata = started.result()

    def metadata(self) -> RankMetadata:
        return self._metadata

    def submit(self, command: TransferCommand) -> None:
        self._commands.put(command)

    def close(self) -> None:
        self._closing.set()
        self._commands.put(None)
        self._thread.join()

    def _run(self, started: Future[RankMetadata]) -> None:
        try:
            loop = self._start()
            started.set_result(loop.metadata)
        except (TransferError, RuntimeError, OSError) as error:
            started.set_exception(error)
            return
        finally:
            # Any other exception ends the thread, which logs it; the constructor must not wait forever.
            if not started.done():
                started.set_exception(TransferError("the agent's thread ended before it was ready"))
        try:
            loop.run(self._commands, self._closing)
        except Exception as error:
            # Without this thread no read would ever be answered. So the rank ends, which the main process notices.
            logger.exception("block transfer cannot go on")
            self._send(RankFailed(f"block transfer cannot go on: {error!r}"))
            return
        loop.close()

    def _start(self) -> AgentLoop:
        if self._on_thread_start is not None:
            self._on_thread_start()
        ours = self._memory.metadata
        # The name is unique for each start of a rank, as NIXL requires, because engine ids are random.
        agent = self._make_agent(f"{ours.engine_id}-{ours.rank}")
        return AgentLoop(agent, self._memory, self._send, self._options)

    def _send(self, event: TransferEvent) -> None:
        if not self._closing.is_set():
            self._emit(event)
