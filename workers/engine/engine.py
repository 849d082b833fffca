"""The asyncio shell around the scheduler. The engine does not poll, and has no task for stepping.

Every event (a request, an answer of the ranks, the end of a lease) changes the scheduler and then calls the *pump*,
which sends the messages that the scheduler returns. Requests of one turn of the loop share one call of the pump.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import TYPE_CHECKING

from baton_serve.core.leases.store import LeaseState
from baton_serve.core.protocol.steps import RankFailed, Read, ReadResult, Step, StepResult
from baton_serve.core.protocol.worker import WorkerLoad
from baton_serve.workers.engine.api import (
    AbortedError,
    DrainingError,
    EngineDeadError,
    EngineError,
    EngineGoneError,
    EngineRequest,
    PromptOutput,
    TokenOutput,
    TokenStream,
)
from baton_serve.workers.engine.config import EngineConfig
from baton_serve.workers.engine.counters import EngineStats
from baton_serve.workers.engine.errors import EngineFault
from baton_serve.workers.engine.pending_handshakes import PendingHandshakes
from baton_serve.workers.engine.ports import Connector, EngineEvent, EngineHooks, LeaseRead, Ranks, ReadFailing
from baton_serve.workers.engine.scheduling.scheduler import Command, Scheduler
from baton_serve.workers.engine.scheduling.step_outcome import Output
from baton_serve.workers.engine.step_pace import StepPace
from baton_serve.workers.engine.timeouts import Timeouts
from baton_serve.workers.engine.tombstones import Tombstones

if TYPE_CHECKING:
    from baton_serve.workers.engine.timeouts import CallLater

_LOG = logging.getLogger(__name__)


class AsyncEngine:
    """Implements ``api.Engine``, which says what its methods promise. Construct it on the loop, once the ranks are
    ready; the first request makes it send.

    ``version_base``: see ``BlockPool``; by default random, 63 bits. ``call_later``: for ``step_timeout_s`` and
    ``read_timeout_s``; the loop's by default. ``clock``: seconds; the loop's by default.
    """

    def __init__(
        self,
        config: EngineConfig,
        ranks: Ranks,
        connector: Connector,
        hooks: EngineHooks | None = None,
        *,
        version_base: int | None = None,
        call_later: CallLater | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        version_base = secrets.randbits(63) if version_base is None else version_base
        self._scheduler = Scheduler(config, version_base, is_connected=connector.is_connected)
        self.leases = self._scheduler.state.leases
        self._ranks = ranks
        self._handshakes = PendingHandshakes(connector, self._on_handshake_end)
        self._hooks = hooks or EngineHooks()
        self._loop = asyncio.get_running_loop()
        call_later = call_later or self._loop.call_later
        self._call_later = call_later
        self._step_timers = Timeouts(config.step_timeout_s, call_later, self._on_step_timeout)
        self._read_timers = Timeouts(config.read_timeout_s, call_later, self._on_read_timeout)
        #: The step whose timer starts when the one before it has ended.
        self._step_ahead: int | None = None
        self._pace = StepPace()
        #: The step for which it is decided when the next one is sent ahead.
        self._paced_step: int | None = None
        self._tombstones = Tombstones(clock or self._loop.time)
        self._streams: dict[int, TokenStream] = {}
        self._pump_handle: asyncio.Handle | None = None
        self._draining = False
        self._quiet = asyncio.Event()
        self._error: str | None = None
        #: ``leases_ended`` when ``on_pressure`` was last called; -1: not starved since.
        self._pressure_told_at = -1

    def __repr__(self) -> str:
        state = f"dead ({self._error})" if self._error else "draining" if self._draining else "serving"
        return f"<AsyncEngine {state} {self._scheduler!r}>"

    # --- api.Engine ---------------------------------------------------------------------------------------------

    def submit(self, request: EngineRequest) -> TokenStream:
        try:
            seq_id = self._accept(request)
        except EngineError as error:
            return TokenStream.refused(error)
        stream = TokenStream(lambda: self._abandon(seq_id, request.request_id))
        self._streams[seq_id] = stream
        if request.remote is not None and request.remote.remote_engine_id != self._scheduler.config.engine_id:
            self._handshakes.start(seq_id, request.remote)
        self._pump_soon()
        return stream

    def _accept(self, request: EngineRequest) -> int:
        if self._error is not None:
            raise EngineGoneError(self._error)
        if self._draining:
            raise DrainingError("this worker is draining and takes no new requests")
        if self._tombstones.covers(request.request_id):
            raise _aborted(request.request_id)
        older = self._scheduler.current(request.request_id)
        seq_id = self._scheduler.add(request)
        if older is not None:
            self._end_aborted(older, request.request_id)
        return seq_id

    def _abandon(self, seq_id: int, request_id: str) -> None:
        """Abort the sequence of a stream that was closed early, unless a newer one has taken over its request id."""
        if seq_id in self._streams:
            self.abort(request_id)

    def abort(self, request_id: str) -> bool:
        if not self._abort(request_id):
            return False
        self._pump()
        return True

    def abort_all(self, suffix: str) -> int:
        self._tombstones.note(suffix)
        num_ended = sum(self._abort(request_id) for request_id in self._scheduler.requests_with(suffix))
        if num_ended:
            self._pump()
        return num_ended

    def _abort(self, request_id: str) -> bool:
        seq_id = None if self._error is not None else self._scheduler.abort(request_id)
        if seq_id is None:
            return False
        self._end_aborted(seq_id, request_id)
        return True

    def _end_aborted(self, seq_id: int, request_id: str) -> None:
        """Stop the handshake and end the stream of a sequence that the scheduler has aborted."""
        self._handshakes.cancel(seq_id)
        self._put(seq_id, _aborted(request_id))

    def end_lease(self, lease_id: str, how: LeaseState) -> bool:
        has_ended = self._scheduler.state.end_lease(lease_id)
        self._hooks.on_lease_end(lease_id, how)
        if has_ended:
            self._pump_soon()
        return has_ended

    def load(self) -> WorkerLoad:
        return self._scheduler.load(draining=self._draining)

    # --- life ---------------------------------------------------------------------------------------------------

    def begin_drain(self) -> None:
        """Refuse new requests. Requests that were accepted continue."""
        self._draining = True
        self._look_quiet()

    def end_drain(self) -> None:
        """Accept requests again. Must not be called during ``drain``, which would wait until the next drain ends."""
        self._draining = False
        if self._error is None:
            self._quiet.clear()

    async def drain(self) -> None:
        """Refuse new requests, and return when no sequence and no lease is left, or the engine is dead.

        The engine waits for reads that were cancelled or given up, but only until ``read_timeout_s`` has passed.
        Cancelling the call only stops the waiting; the engine keeps refusing requests.
        """
        self.begin_drain()
        await self._quiet.wait()

    def dead(self, error: str) -> None:
        """End the engine, because a rank is gone or hangs: all streams, and all later requests, raise EngineDeadError.

        Idempotent.
        """
        if self._error is not None:
            return
        _LOG.error("engine is dead: %s; %r", error, self._scheduler)
        self._end(error)
        self._hooks.on_dead(error)

    def _end(self, error: str) -> None:
        self._error = self._error or error
        self._handshakes.cancel_all()
        self._step_timers.stop_all()
        self._read_timers.stop_all()
        for seq_id in list(self._streams):
            self._put(seq_id, EngineDeadError(error))
        self._quiet.set()

    async def close(self) -> None:
        """End all streams with EngineDeadError, and cancel and await the handshakes. Sends nothing to the ranks."""
        self._end("the engine was closed")
        if self._pump_handle is not None:
            self._pump_handle.cancel()
        await self._handshakes.close()

    def stats(self) -> EngineStats:
        return EngineStats(deepcopy(self._scheduler.counters), self._scheduler.pool.stats(), self.load())

    def audit(self) -> Callable[[], None]:
        """See ``SchedulerState.audit``."""
        return self._scheduler.state.audit()

    # --- answers of the ranks -----------------------------------------------------------------------------------

    def on_rank_event(self, event: EngineEvent) -> None:
        """Handle a merged answer of the ranks. Ignored once the engine is dead."""
        if self._error is not None:
            return
        if isinstance(event, StepResult | ReadResult):
            self._take_result(event)
        elif isinstance(event, ReadFailing):
            self._end_failed(self._scheduler.reads.give_up(event.read_id, event.error))
        elif isinstance(event, LeaseRead):
            self.note_read(event.lease_id)
        elif isinstance(event, RankFailed):
            self.dead(event.error)

    def note_read(self, name: str) -> None:
        lease_id = self.leases.note_read(name)
        if lease_id is not None:
            self.end_lease(lease_id, LeaseState.DONE)

    def _take_result(self, event: StepResult | ReadResult) -> None:
        """Apply the result and pump before streams and hooks run, so that the ranks get their next step first.

        With no sequence left the ranks have only to forget, and the answers go first.
        """
        if isinstance(event, ReadResult):
            self._read_timers.stop(event.read_id)
        else:
            self._stop_step_timer(event.step_id)
        outputs: list[Output] = []
        num_steps = self._scheduler.counters.steps
        with self._faults_are_fatal():
            if isinstance(event, StepResult):
                outputs = self._scheduler.apply_step(event)
            elif (failure := self._scheduler.apply_read(event)) is not None:
                outputs = [failure]
        goes_on = bool(self._scheduler.state.sequences.by_id)
        if goes_on:
            self._pump()
        for seq_id, item in outputs:
            self._put(seq_id, item)
        if not goes_on:
            self._pump_soon()
        self._observe(event, num_steps)

    @contextmanager
    def _faults_are_fatal(self) -> Iterator[None]:
        """End the engine on any exception, so that no stream waits for an engine that cannot continue."""
        try:
            yield
        except EngineFault as error:
            self.dead(f"{type(error).__name__}: {error}")
        except BaseException as error:
            self.dead(repr(error))
            raise

    def _observe(self, event: StepResult | ReadResult, num_steps_before: int) -> None:
        """Call the hooks and note the time, except for a step without rows, whose time would distort both."""
        if isinstance(event, ReadResult):
            self._hooks.on_read(event)
        elif self._scheduler.counters.steps > num_steps_before:
            self._pace.note(event.seconds)
            self._hooks.on_step(event)

    def _on_step_timeout(self, step_id: int) -> None:
        """End the engine: the step that runs has not ended, and no other step can run before it does."""
        after = f"after {self._scheduler.config.step_timeout_s:g} s (step_timeout_s)"
        silent = _in_words(self._ranks.silent_ranks(step_id))
        self.dead(f"step {step_id} has not ended {after}: no answer from {silent}")

    def _on_read_timeout(self, read_id: int) -> None:
        """Give up a read, even one that is cancelled or failing: until it has ended, no other read from its P may
        start.
        """
        _LOG.warning("read %d has not ended after %g s", read_id, self._scheduler.config.read_timeout_s)
        self._ranks.give_up_read(read_id)
        self._end_failed(self._scheduler.time_out_read(read_id))

    def _end_failed(self, failure: Output | None) -> None:
        """End the sequence of a failed read, unless it was aborted before. Its slot is free now, its blocks later."""
        self._pump()
        if failure is not None:
            self._put(*failure)

    def _put(self, seq_id: int, item: TokenOutput | PromptOutput | EngineError) -> None:
        is_last = isinstance(item, EngineError) or item.finish is not None
        stream = self._streams.pop(seq_id, None) if is_last else self._streams.get(seq_id)
        if stream is not None:
            stream.put(item)

    def _on_handshake_end(self, seq_id: int, error: BaseException | None) -> None:
        if self._error is not None:
            return
        if error is None:
            with self._faults_are_fatal():
                self._scheduler.connected(seq_id)
            self._pump_soon()
            return
        reason = str(error) or type(error).__name__
        failure = self._scheduler.connect_failed(seq_id, reason)
        if failure is not None:
            _LOG.warning("handshake for sequence %d failed: %s", seq_id, reason)
            self._put(*failure)
            self._look_quiet()

    # --- the pump -----------------------------------------------------------------------------------------------

    def _pump_soon(self) -> None:
        if self._pump_handle is None:
            self._pump_handle = self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        """Send the scheduler's commands, and start handshakes for sequences whose P could not be read from."""
        if self._pump_handle is not None:
            self._pump_handle.cancel()
            self._pump_handle = None
        if self._error is not None:
            return
        with self._faults_are_fatal():
            commands = self._scheduler.schedule()
            for seq_id, params in self._scheduler.drain_disconnected():
                self._handshakes.start(seq_id, params)
            for command in commands:
                self._send(command)
        for lease_id in self._scheduler.local_handoff.drain():
            self.note_read(lease_id)
        if self._scheduler.config.steps_ahead:
            self._pace_step()
        self._look_starved()
        self._look_quiet()

    def _pace_step(self) -> None:
        """Have the step after the one that the ranks have just begun sent ahead in time."""
        step_id = self._scheduler.under_way.lone
        if step_id is None or step_id == self._paced_step:
            return
        self._paced_step = step_id
        if self._pace.wait_s:
            self._call_later(self._pace.wait_s, self._go_ahead, step_id)
        else:
            self._go_ahead(step_id)

    def _go_ahead(self, step_id: int) -> None:
        """Send the step after ``step_id``, if that is still the only one under way."""
        if self._error is not None or self._scheduler.under_way.lone != step_id:
            return
        with self._faults_are_fatal():
            for command in self._scheduler.schedule_ahead():
                self._send(command)

    def _send(self, command: Command) -> None:
        if isinstance(command, Step) and len(self._step_timers):
            self._step_ahead = command.step_id
        elif isinstance(command, Step):
            self._step_timers.start(command.step_id)
        elif isinstance(command, Read):
            self._read_timers.start(command.read_id)
        self._ranks.send(command)

    def _stop_step_timer(self, step_id: int) -> None:
        """Stop the timer of a step that has ended, and start that of the step that the ranks execute now."""
        self._step_timers.stop(step_id)
        if self._step_ahead is not None:
            self._step_timers.start(self._step_ahead)
            self._step_ahead = None

    def _look_starved(self) -> None:
        if not self._scheduler.is_starved:
            self._pressure_told_at = -1
            return
        ended = self._scheduler.counters.leases_ended
        if self._pressure_told_at != ended:
            self._pressure_told_at = ended
            self._hooks.on_pressure()

    def _look_quiet(self) -> None:
        if self._draining and self._scheduler.is_quiet:
            self._quiet.set()


def _aborted(request_id: str) -> AbortedError:
    return AbortedError(f"request {request_id} was aborted")


def _in_words(numbers: list[int]) -> str:
    *others, last = map(str, numbers)
    return f"ranks {', '.join(others)} and {last}" if others else f"rank {last}"
