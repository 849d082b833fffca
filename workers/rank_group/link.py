"""One rank process: starts it, exchanges messages with it, notices its end, stops it. No torch here."""

from __future__ import annotations

import asyncio
import os
import signal
from asyncio.subprocess import Process
from collections.abc import Callable
from contextlib import suppress

import msgspec

from baton_serve.core.process.frames import encode, read
from baton_serve.core.protocol.steps import FromRank, Progress, RankFailed, RankReady, Shutdown, ToRank
from baton_serve.workers.rank_group.launch import launch, run_to_completion
from baton_serve.workers.rank_protocol.errors import SIBLING_LOST_STATUS, RankDeadError, RankStartError, one_line
from baton_serve.workers.rank_protocol.spec import RankSpec

OnEvent = Callable[[FromRank], None]
OnDeath = Callable[[RankDeadError], None]

#: Seconds that a rank has to exit after ``Shutdown``, and again after SIGTERM.
STOP_GRACE_S = 10.0
_FROM_RANK: msgspec.msgpack.Decoder[FromRank] = msgspec.msgpack.Decoder(FromRank)


class RankLink:
    """One running rank process. Methods are called on the loop that started it, and callbacks run there too.

    ``on_event`` gets all messages of the rank, in order, except ``RankReady`` and ``RankFailed``. ``on_death`` is
    called at most once, when the process ends after it was ready and without ``stop``; no callback follows.
    """

    def __init__(
        self,
        process: Process,
        streams: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        on_event: OnEvent,
        on_death: OnDeath,
        name: str,
    ) -> None:
        self._process = process
        self._name = name
        self._reader, self._writer = streams
        self._on_event = on_event
        self._on_death = on_death
        self._stopping = False
        self._pump: asyncio.Task[None] | None = None
        self._ready: RankReady | None = None

    @classmethod
    async def start(
        cls,
        spec: RankSpec,
        on_event: OnEvent,
        on_death: OnDeath = lambda error: None,
        *,
        environ: dict[str, str] | None = None,
        name: str = "the rank process",
    ) -> RankLink:
        """Start the process and wait until it is ready; ``Progress`` events come meanwhile. ``name`` is for errors.

        There is no timeout: use ``asyncio.timeout``. Raises RankStartError with the rank's own message. If this raises
        or is cancelled, the process has ended.
        """
        process, streams = await launch(spec, environ or {})
        link = cls(process, streams, on_event, on_death, name)
        try:
            link._ready = await link._wait_until_ready()
        except BaseException:
            await run_to_completion(link._destroy())
            raise
        link._pump = asyncio.create_task(link._run(), name="rank link")
        return link

    def __repr__(self) -> str:
        state = "starting" if self._ready is None else "stopping" if self._stopping else "ready"
        return f"<RankLink {self._name} pid={self.pid} {state}>"

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_status(self) -> int | None:
        """The exit status, negative for a signal; None while the process runs."""
        return self._process.returncode

    @property
    def ready(self) -> RankReady:
        assert self._ready is not None, "start() returns ready links only"
        return self._ready

    def send(self, message: ToRank) -> None:
        """Queue a message; never blocks. A message to a rank that has just died is lost."""
        self.send_frame(encode(message))

    def send_frame(self, frame: bytes) -> None:
        """Queue a message that is encoded already; otherwise like ``send``."""
        if not self._writer.is_closing():
            self._writer.write(frame)

    def kill(self) -> None:
        """Kill the process now, without ``on_death``. ``stop`` must still be awaited."""
        self._stopping = True
        self._signal(signal.SIGKILL)

    async def stop(self) -> None:
        """Let the rank finish its queued steps and exit; after STOP_GRACE_S it is terminated. Idempotent."""
        self.send(Shutdown())
        self._stopping = True
        await asyncio.shield(self._end())

    async def _end(self) -> None:
        # The pump continues to read, because a rank that is blocked in sending its last results could not exit.
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), STOP_GRACE_S)
                break
            self._signal(number)
        await self._destroy()

    async def _destroy(self) -> None:
        """Kill the process if it still runs, and close the connection."""
        self._signal(signal.SIGKILL)
        await self._process.wait()
        if self._pump is not None:
            await asyncio.wait([self._pump])
        self._writer.close()
        with suppress(ConnectionError):
            await self._writer.wait_closed()

    def _signal(self, number: signal.Signals) -> None:
        # Not ``send_signal()``, which polls first and so may take the exit status away from the loop that waits for it.
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, number)

    async def _wait_until_ready(self) -> RankReady:
        while (message := await self._read()) is not None:
            if isinstance(message, RankReady):
                return message
            if isinstance(message, RankFailed):
                raise RankStartError(message.error)
            if isinstance(message, Progress):
                self._on_event(message)
        why = await self._describe_exit()
        raise RankStartError(f"{why} before it was ready", in_consequence=self._lost_a_sibling())

    async def _run(self) -> None:
        """Pass on the rank's messages until it has ended, then call ``on_death``, even if a callback raises."""
        reason = "its messages could not be handled"
        try:
            reason = await self._pass_on()
        finally:
            if not self._stopping:
                self._stopping = True
                self._on_death(RankDeadError(reason, in_consequence=self._lost_a_sibling()))

    async def _pass_on(self) -> str:
        """Call ``on_event`` until the rank has ended; returns the reason."""
        while (message := await self._read()) is not None:
            if isinstance(message, RankFailed):
                return message.error
            if not self._stopping:
                self._on_event(message)
        return await self._describe_exit()

    async def _read(self) -> FromRank | None:
        try:
            return await read(self._reader, _FROM_RANK)
        except msgspec.DecodeError as error:
            return RankFailed(one_line(error))

    async def _describe_exit(self) -> str:
        """How the process ended. Its socket is closed, so the process should end now."""
        try:
            status = await asyncio.wait_for(self._process.wait(), STOP_GRACE_S)
        except TimeoutError:
            return f"{self._name} closed its connection"
        if self._lost_a_sibling():
            return f"{self._name} lost another rank"
        how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
        return f"{self._name} {how}"

    def _lost_a_sibling(self) -> bool:
        return self.exit_status == SIBLING_LOST_STATUS
