"""The leases on vLLM's prefill workers, for the rest of the router: all methods are called on one event loop.

Nothing here waits for a vLLM server: a lease is held from the moment of the call, and renewed as soon as the NIXL agent
is connected to its engine. An agent that cannot be had means only that leases end by themselves, and say so.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping

from baton_serve.core.leases.store import LeaseState
from baton_serve.core.process.clock import boottime_ms
from baton_serve.router.vllm.leases.agent.messages import (
    AgentReady,
    Connect,
    Connected,
    Forget,
    FromAgent,
    Notified,
    Notify,
)
from baton_serve.router.vllm.leases.agent_process import AgentProcess
from baton_serve.router.vllm.leases.book import Batch, LeaseBook
from baton_serve.router.vllm.leases.connections import Connections
from baton_serve.router.vllm.leases.notices import release, renewals
from baton_serve.router.vllm.leases.remote_engine import RemoteEngine, check_address
from baton_serve.router.vllm.leases.side_channel import SideChannels
from baton_serve.router.vllm.leases.side_channel_facts import SideChannelError, SideChannelFacts
from baton_serve.router.vllm.leases.standstills import TICK_MS, Standstills
from baton_serve.router.vllm.leases.unanswered import Unanswered

logger = logging.getLogger(__name__)

#: Most engines for which the log says that they cannot be connected.
MAX_COMPLAINTS = 100
#: An agent that is not ready this many ms after its process ended or was first started is taken to hang: there may be a
#: pause before the start, and libraries are loaded.
START_LIMIT_MS = 120_000
#: An agent that has answered neither with a connection nor with a failure after this many ms is taken to hang.
ANSWER_LIMIT_MS = 10_000
#: Longest wait for the ranks of an engine to answer, seconds; each of them has five.
CONNECT_S = 30.0
_HOW_TO = "install it with: pip install 'baton-serve[vllm]'"


class VllmLeases:
    """Renews, releases and gives up the leases of one router. Nothing runs before it is needed."""

    def __init__(
        self, duration_s: int, *, handshake_key: bytes | None = None, clock: Callable[[], int] = boottime_ms
    ) -> None:
        """``duration_s``: at most the ``kv_lease_duration`` of every prefill worker, seconds.

        ``handshake_key``: of the proofs in handshakes over HTTP; None: this router has no token.
        """
        self._clock = clock
        #: For the leases themselves.
        self.book = LeaseBook(duration_s)
        self._connections = Connections()
        self._process = AgentProcess(self._handle, self._process_ended)
        self._side_channels = SideChannels(handshake_key)
        #: Tasks that ask the ranks of an engine, to connect it.
        self._connecting: set[asyncio.Task[None]] = set()
        self._unanswered = Unanswered()
        #: The batches of which the agent has not reported yet whether they were sent.
        self._batches: deque[Batch] = deque()
        self._has_agent = False
        self._on_over: dict[tuple[str, str], Callable[[LeaseState], None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._standstills = Standstills()
        #: None until something of vLLM is used.
        self._ticker: asyncio.TimerHandle | None = None
        self._closed = False
        #: Engines that the log has said cannot be connected.
        self._complained: set[str] = set()
        self._complained_of_agent = False
        self._counts = dict.fromkeys(
            (
                "held",
                "read",
                "lost",
                "abandoned",
                "release_asked",
                "release_sent",
                "renewal_sent",
                "send_failed",
                "connect_failed",
                "agent_restarted",
            ),
            0,
        )

    def __repr__(self) -> str:
        connected = len(self._connections.connected)
        return f"<VllmLeases held={len(self)} connected={connected} {self._process!r}>"

    def __len__(self) -> int:
        """The number of leases that are held."""
        return len(self.book)

    def now_ms(self) -> int:
        """The clock that leases are counted with, ms."""
        return self._clock()

    def hold(
        self,
        where: RemoteEngine,
        lease_id: str,
        on_over: Callable[[LeaseState], None],
        *,
        asked_ms: int | None = None,
    ) -> VllmLease:
        """Renew a lease from now on. The prefill worker's answer must have been read just now.

        ``asked_ms``: a time before the prefill worker was asked, by ``now_ms``; None: that is not known.
        ``on_over`` is called once when the deadline may have passed, with EXPIRED; not after ``confirmed`` or
        ``release``. Raises AlreadyHeldError, and ValueError for an id that notifications cannot carry.
        """
        now_ms = self._clock()
        self.book.hold(where.engine_id, lease_id, self._standstills.unread_since_ms(now_ms), asked_ms)
        self._connections.want(where, now_ms)
        self._on_over[where.engine_id, lease_id] = on_over
        self._counts["held"] += 1
        self._use(where.host)
        self._turn_soon()
        return VllmLease(self, where.engine_id, lease_id)

    def tracks(self, engine_id: str, lease_id: str) -> bool:
        """Whether the lease is held already, so that ``hold`` would refuse it."""
        return self.book.holds(engine_id, lease_id)

    def meet(self, where: RemoteEngine) -> None:
        """Connect to the engine of a prefill worker before the first lease, and stay connected until ``forget``."""
        self._connections.meet(where, self._clock())
        self._use(where.host)
        self._turn_soon()

    async def query(self, host: str, port: int, handshake_port: int = 0) -> SideChannelFacts:
        """Ask the side channel at ``host:port`` which engine it belongs to, and what that is compatible with.

        With a ``handshake_port``, the server is asked there instead, over HTTP.

        Raises SideChannelError with a sentence for people, and ValueError for what is no address.
        """
        check_address(host, port, handshake_port)
        return await self._side_channels.ask_first(host, port, handshake_port)

    def counters(self) -> Mapping[str, int]:
        """Counts so far: of leases ``held``, ``read``, ``lost`` (the deadline may have passed), ``abandoned`` (given to
        a D that never confirmed), ``release_asked``; of what was sent to an engine with all its ranks:
        ``release_sent`` and ``renewal_sent``, each lease by itself; of failures.
        """
        return dict(self._counts)

    def use_expected(self, engine_id: str, num_seen: int, *, late: bool = False) -> int:
        """How many of the leases that this engine says it expired, or was told of too late, were expected; see
        ``LeaseBook``.
        """
        return self.book.use_expected(engine_id, num_seen, late=late)

    def forget(self, engine_id: str) -> None:
        """Drop what was counted about an engine that is gone, and disconnect it unless leases on it are held still."""
        self.book.forget(engine_id)
        if engine_id in self.book:
            self._connections.left(engine_id)
        elif engine_id in self._connections:
            self._disconnect(engine_id)

    async def close(self) -> None:
        """Send the releases that are left, once, and end the process. Leases that are still held expire."""
        if self._has_agent:
            self._send_all(self._clock())
        self._closed = True
        for timer in (self._timer, self._ticker):
            if timer is not None:
                timer.cancel()
        self._on_over.clear()
        self._stop_connecting()
        await self._process.close()

    # What a held lease asks for.

    def confirm(self, engine_id: str, lease_id: str) -> None:
        """See ``VllmLease``."""
        if self._on_over.pop((engine_id, lease_id), None) is not None:
            self._counts["read"] += 1
        self.book.confirm(engine_id, lease_id)

    def release(self, engine_id: str, lease_id: str) -> None:
        """See ``VllmLease``."""
        if self._on_over.pop((engine_id, lease_id), None) is None:
            return
        is_given = self.book.is_given(engine_id, lease_id)
        self._counts["abandoned" if is_given else "release_asked"] += 1
        self.book.release(engine_id, lease_id, self._clock())
        self._turn_soon()

    # What has to be done now, and when next.

    def _use(self, host: str) -> None:
        """Have everything run that is needed for an engine on ``host``."""
        self._process.start(host)
        if self._ticker is None and not self._closed:
            self._tick()
            self._await_agent()

    def _await_agent(self) -> None:
        self._unanswered.add(self._clock() + START_LIMIT_MS)
        self._turn_soon()

    def _tick(self) -> None:
        self._standstills.tick(self._clock())
        self._ticker = asyncio.get_running_loop().call_later(TICK_MS / 1000, self._tick)

    def _turn_soon(self) -> None:
        if not self._closed:
            self._set_timer(0.0)

    def _set_timer(self, delay_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._turn)

    def _turn(self) -> None:
        now_ms = self._clock()
        self._end_overdue(now_ms)
        if self._unanswered.hangs(now_ms):
            self._has_agent = False  # until another one is ready
            self._unanswered.clear()
            self._process.kill("does not answer")
        if self._has_agent:
            for where in self._connections.take_due(self.book, now_ms):
                task = asyncio.get_running_loop().create_task(self._connect(where))
                self._connecting.add(task)
                task.add_done_callback(self._connecting.discard)
            self._send_all(now_ms)
            for engine_id in self._connections.take_idle(self.book, now_ms):
                self._disconnect(engine_id)
        else:
            self._connections.drop_unneeded(self.book)
        next_ms = [self.book.next_ms(self._connections.connected), self._unanswered.next_ms()]
        if self._has_agent:
            next_ms.append(self._connections.next_ms())
        times = [at_ms for at_ms in next_ms if at_ms is not None]
        if times and not self._closed:
            self._set_timer(max(0, min(times) - now_ms) / 1000)

    def _end_overdue(self, now_ms: int) -> None:
        for engine_id, lease_id in self.book.take_over(now_ms):
            self._counts["lost"] += 1
            logger.info("the lease %s of vLLM engine %s may have expired", lease_id, engine_id)
            on_over = self._on_over.pop((engine_id, lease_id), None)
            if on_over is not None:
                on_over(LeaseState.EXPIRED)

    def _send_all(self, now_ms: int) -> None:
        for engine_id in list(self._connections.connected):
            if (batch := self.book.take(engine_id, now_ms)) is not None:
                self._send(batch)

    def _send(self, batch: Batch) -> None:
        payloads = [release(lease_id) for lease_id in batch.release] + renewals(batch.renew)
        self._batches.append(batch)
        self._unanswered.add(batch.began_ms + self.book.interval_ms)
        self._process.send(Notify(batch.engine_id, payloads))

    async def _connect(self, where: RemoteEngine) -> None:
        try:
            async with asyncio.timeout(CONNECT_S):
                ranks = await self._side_channels.ask_all(where)
        except (SideChannelError, TimeoutError) as error:
            self._not_connected(where.engine_id, str(error) or f"its ranks do not answer within {CONNECT_S:g} s")
        except Exception as error:
            self._not_connected(where.engine_id, repr(error))
            raise
        else:
            self._unanswered.add(self._clock() + ANSWER_LIMIT_MS)
            self._process.send(Connect(where.engine_id, ranks))
        finally:
            self._turn_soon()

    def _stop_connecting(self) -> None:
        for task in self._connecting:
            task.cancel()

    def _disconnect(self, engine_id: str) -> None:
        self._connections.forget(engine_id)
        self._complained.discard(engine_id)
        self._process.send(Forget(engine_id))

    # What the process says.

    def _handle(self, event: FromAgent) -> None:
        self._unanswered.answered()
        match event:
            case AgentReady():
                self._note_agent(event.error)
            case Connected():
                self._note_connected(event)
            case Notified():
                self._note_sent(event.error)
        self._turn_soon()

    def _note_agent(self, error: str) -> None:
        self._has_agent = not error
        if error and not self._complained_of_agent:  # one line in the life of this router
            self._complained_of_agent = True
            logger.warning(
                "leases of vLLM workers are neither renewed nor released early, so requests that wait for a decode "
                "worker longer than a lease lasts are prefilled again: %s; %s",
                error,
                _HOW_TO,
            )

    def _note_connected(self, event: Connected) -> None:
        if event.error:
            self._not_connected(event.engine_id, event.error)
        elif self._connections.made(event.engine_id, event.num_ranks, self._clock()):
            self._complained.discard(event.engine_id)
        else:  # it was forgotten meanwhile
            self._process.send(Forget(event.engine_id))

    def _not_connected(self, engine_id: str, error: str) -> None:
        self._lose(engine_id, f"cannot be connected: {error}", self._clock())
        self._counts["connect_failed"] += 1

    def _note_sent(self, error: str) -> None:
        batch, now_ms = self._batches.popleft(), self._clock()
        if error:
            self.book.not_sent(batch, now_ms)
            self._lose(batch.engine_id, f"is disconnected: {error}", now_ms)
            self._counts["send_failed"] += 1
        else:
            self.book.sent(batch, now_ms)
            self._counts["release_sent"] += len(batch.release)
            self._counts["renewal_sent"] += len(batch.renew)

    def _lose(self, engine_id: str, why: str, now_ms: int) -> None:
        self._connections.lost(engine_id, now_ms)
        if len(self._complained) >= MAX_COMPLAINTS:  # else engines that are gone would keep others out for ever
            self._complained = {known for known in self._complained if known in self.book}
        if engine_id not in self._complained and len(self._complained) < MAX_COMPLAINTS:
            self._complained.add(engine_id)
            logger.warning("leases of vLLM engine %s are not renewed, because it %s", engine_id, why)

    def _process_ended(self) -> None:
        now_ms = self._clock()
        self._has_agent = False
        self._stop_connecting()
        self._counts["agent_restarted"] += 1
        for batch in self._batches:
            self.book.not_sent(batch, now_ms)
        self._batches.clear()
        self._connections.all_lost(now_ms)
        self._unanswered.clear()
        self._await_agent()


class VllmLease:
    """``HeldLease`` (``router/renewal/port.py``) of a vLLM engine."""

    __slots__ = ("_leases", "engine_id", "lease_id")

    is_shared = False

    def __init__(self, leases: VllmLeases, engine_id: str, lease_id: str) -> None:
        self._leases = leases
        self.engine_id = engine_id
        self.lease_id = lease_id

    def __repr__(self) -> str:
        return f"<VllmLease {self.lease_id} of {self.engine_id}, {self.remaining_ms()} ms left>"

    def remaining_ms(self) -> int | None:
        """Milliseconds for which the prefill worker surely keeps the blocks; 0 once the lease is over."""
        return self._leases.book.remaining_ms(self.engine_id, self.lease_id, self._leases.now_ms())

    def given(self) -> None:
        """Note that a D is about to be sent the parameters. Renewing goes on, because D may wait before it reads."""
        self._leases.book.give(self.engine_id, self.lease_id)

    def confirmed(self) -> bool:
        """Stop renewing: D has answered, so it has read the blocks."""
        self._leases.confirm(self.engine_id, self.lease_id)
        return True

    def release(self) -> bool:
        """Stop renewing. Blocks that no D was given are freed at once; D tells the prefill worker about the others."""
        self._leases.release(self.engine_id, self.lease_id)
        return True
