"""The asyncio shell, with a rank and a connector that the test moves by hand."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

import pytest

from baton_serve.core.leases.store import LeaseState
from baton_serve.core.protocol.handoff import KVTransferParams
from baton_serve.core.protocol.router import REFUSE_GONE_S
from baton_serve.core.protocol.steps import CancelRead, RankFailed, Read, ReadResult, Step, StepResult, ToRank
from baton_serve.workers.engine.api import (
    AbortedError,
    DrainingError,
    EngineDeadError,
    EngineRequest,
    FinishReason,
    HandOff,
    PromptTooLongError,
    ReadFailedError,
    TokenOutput,
    TokenStream,
)
from baton_serve.workers.engine.engine import AsyncEngine
from baton_serve.workers.engine.ports import EngineHooks, LeaseRead, ReadFailing
from baton_serve.workers.engine.tombstones import MAX_SUFFIXES, Tombstones
from tests.kits.engine.fake_rank import FakeRank
from tests.kits.engine.requests import VOCAB, config, expected, params_of, remote_request, request
from tests.kits.patience import PATIENCE_S

PROMPT = [1, 2, 3, 4, 5, 6]
STEP_TIMEOUT_S = 77.0


class HandRank:
    """Implements ``Ranks`` and keeps what is sent; ``finish`` and ``read`` answer; ``auto`` steps end by themselves."""

    def __init__(self) -> None:
        self.auto = True
        self.sent: deque[ToRank] = deque()
        self.engine: AsyncEngine
        self.rank: FakeRank
        self.error: Exception | None = None
        self.given_up: list[int] = []
        self.silent = [0]

    def silent_ranks(self, step_id: int) -> list[int]:
        assert self.rank.step is not None and self.rank.step.step_id == step_id
        return self.silent

    def give_up_read(self, read_id: int) -> None:
        self.given_up.append(read_id)

    def send(self, message: ToRank) -> None:
        if self.error is not None:
            raise self.error
        self.sent.append(message)
        self.rank.receive(message)
        if self.auto and isinstance(message, Step):
            asyncio.get_running_loop().call_soon(self.finish)

    def finish(self) -> None:
        self.engine.on_rank_event(self.rank.finish_step())

    def read(self, outcome: str = "done", prompt: list[int] = PROMPT) -> None:
        read_id = min(self.rank.reads)
        self.engine.on_rank_event(self.rank.finish_read(read_id, outcome, prompt))


class HandConnector:
    """A ``Connector``: each handshake waits until the test ends it."""

    def __init__(self) -> None:
        self.waiting: deque[asyncio.Future[None]] = deque()
        #: Whether a handshake has ended well.
        self.met = False
        #: What is answered between handshakes, once ``p`` was met.
        self.connected = True
        #: PendingHandshakes work without a wait.
        self.at_once = False
        self.num_asked = 0

    def is_connected(self, engine_id: str) -> bool:
        assert engine_id == "p"
        return self.connected and self.met

    async def connect(self, params: KVTransferParams) -> None:
        assert params.remote_engine_id == "p"
        self.num_asked += 1
        if self.at_once:
            self.met = True
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiting.append(future)
        await future
        self.met = True


class HandTimer:
    """A ``Timer``: fires when the test says so."""

    def __init__(self, delay_s: float, fire: Callable[[], None]) -> None:
        self.delay_s = delay_s
        self.fire = fire
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class Ears:
    """All hooks, writing down what they hear."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, Any]] = []
        self.hooks = EngineHooks(
            on_lease_end=lambda lease_id, how: self.heard.append(("lease_end", (lease_id, how))),
            on_pressure=lambda: self.heard.append(("pressure", None)),
            on_dead=lambda error: self.heard.append(("dead", error)),
            on_step=lambda result: self.heard.append(("step", result.step_id)),
            on_read=lambda result: self.heard.append(("read", result.outcome)),
        )

    def of(self, kind: str) -> list[Any]:
        return [value for name, value in self.heard if name == kind]


class World:
    """An engine and everything around it."""

    def __init__(self, hooks: EngineHooks | None = None, *, auto: bool = True, **changes: Any) -> None:
        self.link, self.connector = HandRank(), HandConnector()
        self.link.auto = auto
        #: Of reads, and of steps.
        self.timers: list[HandTimer] = []
        self.step_timers: list[HandTimer] = []
        self.now_s = 0.0
        self.engine = AsyncEngine(
            config(**{"step_timeout_s": STEP_TIMEOUT_S, **changes}),
            self.link,
            self.connector,
            hooks,
            version_base=0,
            call_later=self.call_later,
            clock=lambda: self.now_s,
        )
        self.link.engine = self.engine
        self.link.rank = FakeRank(self.engine._scheduler.pool, VOCAB)

    def call_later(self, delay_s: float, callback: Callable[[int], None], number: int, /) -> HandTimer:
        timers = self.step_timers if delay_s == STEP_TIMEOUT_S else self.timers
        timers.append(HandTimer(delay_s, lambda: callback(number)))
        return timers[-1]

    def submit(self, wanted: EngineRequest) -> TokenStream:
        return self.engine.submit(wanted)

    async def started(self, wanted: EngineRequest) -> TokenStream:
        """A request that the ranks have, or that waits."""
        stream = self.submit(wanted)
        await turns()
        return stream

    @property
    def pinned(self) -> int:
        return self.engine.stats().pool.pinned

    async def reading(self, name: str = "a") -> TokenStream:
        """A request whose read is under way."""
        stream = await self.started(remote_request(name, PROMPT))
        self.connector.waiting.popleft().set_result(None)
        await turns()
        assert isinstance(self.link.sent[-1], Read)
        return stream

    async def hand_off(self, name: str, prompt: list[int]) -> HandOff:
        (output,) = await collect(self.submit(request(name, prompt, 1, hand_off=True)))
        assert output.hand_off is not None
        return output.hand_off


async def turns(count: int = 8) -> None:
    """Let everything that can happen without the test happen."""
    for _ in range(count):
        await asyncio.sleep(0)


async def collect(stream: TokenStream) -> list[TokenOutput]:
    return [output async for output in stream]


async def test_tokens_come_in_order_and_the_stream_ends() -> None:
    world = World()
    outputs = await collect(world.submit(request("a", PROMPT)))
    assert [output.token for output in outputs] == expected(PROMPT, 4)
    assert outputs[-1].finish is FinishReason.LENGTH
    await turns()
    world.engine.audit()()
    assert world.pinned == 0
    assert world.link.rank.records == {}


async def test_requests_of_one_turn_share_a_step() -> None:
    world = World()
    streams = [world.submit(request(name, PROMPT[: index + 1])) for index, name in enumerate("abc")]
    outputs = await asyncio.gather(*map(collect, streams))
    assert [len(tokens) for tokens in outputs] == [4, 4, 4]
    assert isinstance(world.link.sent[0], Step)
    assert len(world.link.sent[0].rows) == 3


async def test_the_rank_has_its_next_step_before_callers_hear() -> None:
    world = World(auto=False)
    stream = world.submit(request("a", PROMPT))
    task = asyncio.create_task(anext(stream))
    await turns()
    world.link.finish()
    assert not task.done()
    assert len(world.link.sent) == 2
    await task


async def test_a_refusal_is_raised_by_the_stream_once() -> None:
    world = World()
    stream = world.submit(request("a", [1] * 64))
    assert stream.is_refused
    with pytest.raises(PromptTooLongError):
        await anext(stream)
    with pytest.raises(StopAsyncIteration):
        await anext(stream)
    await stream.aclose()


async def test_cancelling_a_wait_loses_no_token() -> None:
    world = World(auto=False)
    stream = await world.started(request("a", PROMPT))
    waiting = asyncio.create_task(anext(stream))
    await turns()
    # The token and the cancellation come in the same turn.
    world.link.finish()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    world.link.auto = True
    world.link.finish()
    assert [output.token for output in await collect(stream)] == expected(PROMPT, 4)


async def test_who_waits_for_a_stream_that_is_closed_finds_its_end() -> None:
    world = World(auto=False)
    stream = world.submit(request("a", PROMPT))
    first = asyncio.create_task(anext(stream))
    await turns()
    await stream.aclose()
    with pytest.raises(StopAsyncIteration):
        await first


# --- closing and aborting ----------------------------------------------------------------------------------------


async def test_closing_before_the_first_turn_aborts() -> None:
    world = World()
    await world.submit(request("a", PROMPT)).aclose()
    await turns()
    assert not world.link.sent
    assert world.engine.load().waiting == 0


async def test_closing_while_it_runs_frees_its_blocks_when_the_step_is_over() -> None:
    world = World(auto=False)
    async with aclosing(world.submit(request("a", PROMPT))) as stream:
        await turns()
        world.link.finish()
        await anext(stream)
        assert world.pinned == 2
    assert world.pinned == 2
    world.link.finish()
    assert world.pinned == 0
    await stream.aclose()


async def test_closing_after_the_end_aborts_nobody() -> None:
    world = World()
    stream = await world.started(request("a", PROMPT, 1))
    again = world.submit(request("a", PROMPT))
    await stream.aclose()
    assert len(await collect(again)) == 4


async def test_closing_an_aborted_stream_leaves_a_later_request_of_that_id_alone() -> None:
    world = World(auto=False)
    old = await world.started(request("a", PROMPT))
    world.engine.abort("a")
    new = world.submit(request("a", [1]))
    await old.aclose()
    world.link.auto = True
    world.link.finish()
    assert len(await collect(new)) == 4


@pytest.mark.parametrize("state", ["waiting", "computing", "connecting", "reading"])
async def test_asking_again_ends_the_older_stream_and_no_other(state: str) -> None:
    world = World(auto=False)
    if state == "reading":
        old = await world.reading()
    else:
        old = world.submit((remote_request if state == "connecting" else request)("a", PROMPT))
    if state != "waiting":
        await turns()
    handshakes = list(world.connector.waiting)
    new = world.submit(request("a", [1]))
    with pytest.raises(AbortedError):
        await anext(old)
    await old.aclose()
    await turns()
    assert all(handshake.cancelled() for handshake in handshakes)
    assert any(isinstance(message, CancelRead) for message in world.link.sent) == (state == "reading")
    world.link.auto = True
    world.link.finish()
    assert [output.token for output in await collect(new)] == expected([1], 4)
    assert world.pinned == (2 if state == "reading" else 0)
    if state == "reading":
        world.link.read("cancelled")
    await turns()
    assert world.pinned == 0
    world.engine.audit()()


async def test_one_that_is_refused_leaves_the_older_stream_alone() -> None:
    world = World()
    old = world.submit(request("a", PROMPT))
    with pytest.raises(PromptTooLongError):
        await anext(world.submit(request("a", [1] * 64)))
    assert [output.token for output in await collect(old)] == expected(PROMPT, 4)
    assert not old.is_refused


@pytest.mark.parametrize("why", ["draining", "gone", "queue", "dead"])
async def test_a_stream_says_at_once_that_it_is_refused(why: str) -> None:
    """Whatever refuses it: who asked does not give up the answer before for this one."""
    world = World(max_waiting=1)
    old = world.submit(request("a", PROMPT))
    if why == "draining":
        world.engine.begin_drain()
    elif why == "gone":
        world.engine.abort_all("b")
    elif why == "dead":
        world.engine.dead("gone")
    assert world.submit(request("b", PROMPT)).is_refused
    assert not old.is_refused


async def test_abort_by_id_is_told_to_the_caller() -> None:
    world = World(auto=False)
    stream = await world.started(request("a", PROMPT))
    assert world.engine.abort("a")
    assert not world.engine.abort("a")
    assert not world.engine.abort("never heard of")
    with pytest.raises(AbortedError):
        await anext(stream)
    world.link.finish()
    assert world.pinned == 0


async def test_all_of_a_suffix_are_aborted_in_whatever_state() -> None:
    world = World(max_num_seqs=2)
    leased = await world.hand_off("leased-dead", PROMPT)
    reading = await world.reading("reading-dead")
    world.link.auto = False
    running = world.submit(request("running-dead", PROMPT))
    waiting = world.submit(request("waiting-dead", PROMPT))
    connecting = world.submit(remote_request("connecting-dead", PROMPT))
    other = await world.started(request("dead-other", PROMPT))
    assert world.engine.abort_all("-dead") == 4
    for stream in (reading, running, waiting, connecting):
        with pytest.raises(AbortedError):
            await anext(stream)
    assert world.engine.leases.ending_with("-dead") == [leased.lease_id]
    assert world.engine.leases.ending_with("other") == world.engine.leases.ending_with("dea") == []
    assert world.engine.end_lease(leased.lease_id, LeaseState.RELEASED)
    assert isinstance(world.link.sent[-1], CancelRead)
    world.link.read("cancelled")
    world.link.auto = True
    world.link.finish()
    assert len(await collect(other)) == 4
    assert world.engine.abort_all("-dead") == 0
    await turns()
    world.engine.audit()()
    assert (world.pinned, world.engine.stats().pool.leased) == (0, 0)


async def test_a_request_that_comes_after_its_sender_was_given_up_is_aborted_for_a_while() -> None:
    world = World()
    assert world.engine.abort_all("-dead") == 0
    late = world.submit(request("late-dead", PROMPT, 1, hand_off=True))
    with pytest.raises(AbortedError):
        await anext(late)
    assert not world.link.sent
    assert len(await collect(world.submit(request("other", PROMPT)))) == 4
    world.now_s = REFUSE_GONE_S - 0.001
    with pytest.raises(AbortedError):
        await anext(world.submit(request("later-dead", PROMPT)))
    world.now_s = REFUSE_GONE_S
    assert len(await collect(world.submit(request("and-back-dead", PROMPT)))) == 4


def test_suffixes_are_forgotten_when_their_time_is_over_or_there_are_too_many() -> None:
    now_s = 0.0
    gone = Tombstones(lambda: now_s, keep_s=10)
    gone.note("a")
    now_s = 9.0
    gone.note("b")
    assert gone.covers("1a") and gone.covers("1b") and not gone.covers("1c")
    gone.note("a")
    now_s = 18.0
    assert gone.covers("1a"), "it was given up again later"
    now_s = 19.0
    assert not gone.covers("1a") and not gone.covers("1b") and len(gone) == 0
    for number in range(MAX_SUFFIXES + 1):
        gone.note(f"-{number}")
    assert len(gone) == MAX_SUFFIXES
    assert not gone.covers("x-0") and gone.covers("x-1") and gone.covers(f"x-{MAX_SUFFIXES}")


# --- reads and leases --------------------------------------------------------------------------------------------


async def test_a_read_then_tokens_after_the_first() -> None:
    ears = Ears()
    world = World(ears.hooks)
    stream = await world.reading()
    assert world.engine.load().reading == 1
    world.link.read()
    assert [output.token for output in await collect(stream)] == expected(PROMPT, 4)[1:]
    assert ears.of("read") == ["done"]
    assert ears.of("step") == [1, 2, 3]
    assert world.engine.stats().counters.reads["done"] == 1


@pytest.mark.parametrize("failure", [ConnectionError("nobody there"), ValueError("other weights"), TimeoutError()])
async def test_whatever_a_handshake_raises_is_a_failed_read(failure: Exception) -> None:
    world = World()
    stream = await world.started(remote_request("a", PROMPT))
    world.connector.waiting.popleft().set_exception(failure)
    with pytest.raises(ReadFailedError, match=str(failure) or "TimeoutError"):
        await anext(stream)
    assert world.engine.load().waiting == 0


async def test_a_handshake_that_was_cancelled_from_outside_is_a_failed_read() -> None:
    world = World()
    stream = await world.started(remote_request("a", PROMPT))
    world.connector.waiting.popleft().cancel()
    with pytest.raises(ReadFailedError):
        await anext(stream)


async def test_a_failed_read_is_told_to_the_caller() -> None:
    world = World()
    stream = await world.reading()
    world.link.read("failed")
    with pytest.raises(ReadFailedError, match="it was failed"):
        await anext(stream)
    assert world.pinned == 0


async def test_a_read_that_takes_too_long_is_given_up() -> None:
    ears = Ears()
    world = World(ears.hooks, read_timeout_s=10.0)
    stream = await world.reading()
    (timer,) = world.timers
    assert timer.delay_s == 10.0
    timer.fire()
    with pytest.raises(ReadFailedError, match=r"has not ended after 10 s \(read_timeout\)"):
        await anext(stream)
    await stream.aclose()
    assert world.link.given_up == [1]
    assert not world.engine.abort("a")
    assert (world.pinned, world.engine.load().reading) == (2, 0)
    world.link.read("cancelled")
    assert world.pinned == 0
    assert ears.of("read") == ["cancelled"]
    assert world.engine.stats().counters.reads_timed_out == 1
    world.engine.audit()()


async def test_the_seat_of_a_read_that_was_given_up_is_used_before_its_caller_hears() -> None:
    world = World(max_num_seqs=1)
    stream = await world.reading()
    other = await world.started(request("b", PROMPT))
    assert isinstance(world.link.sent[-1], Read)
    world.timers[0].fire()
    assert isinstance(world.link.sent[-1], Step)
    assert len(await collect(other)) == 4
    with pytest.raises(ReadFailedError):
        await anext(stream)


async def test_nobody_reads_from_where_a_read_was_given_up() -> None:
    """They were connected long before it hung, and wait for the slot it gives up."""
    world = World(max_num_seqs=1)
    hung = await world.reading()
    queued = [world.submit(remote_request(name, PROMPT)) for name in "bc"]
    await turns()
    for handshake in world.connector.waiting:
        handshake.set_result(None)
    world.connector.waiting.clear()
    await turns()
    local = await world.started(request("d", PROMPT, 1))
    sent = len(world.link.sent)
    world.connector.connected = False
    world.timers[0].fire()
    assert len(await collect(local)) == 1, "it waits behind those that cannot read"
    assert not any(isinstance(message, Read) for message in list(world.link.sent)[sent:])
    assert len(world.connector.waiting) == 2
    for handshake in world.connector.waiting:
        handshake.set_exception(ConnectionError("1 reads have not ended"))
    for stream, words in ((hung, "read_timeout"), (queued[0], "have not ended"), (queued[1], "have not ended")):
        with pytest.raises(ReadFailedError, match=words):
            await anext(stream)
    assert world.pinned == 2, "only the read that hangs holds blocks"
    assert world.engine.load().waiting == 0
    world.engine.audit()()


async def test_an_engine_that_was_lost_since_is_met_again() -> None:
    world = World()
    world.connector.connected = False
    stream = await world.started(remote_request("a", PROMPT))
    world.connector.waiting.popleft().set_result(None)
    await turns()
    assert not world.link.sent and world.engine.load().waiting == 1
    world.connector.connected = True
    (again,) = world.connector.waiting
    again.set_result(None)
    await turns()
    world.link.read()
    assert [output.token for output in await collect(stream)] == expected(PROMPT, 4)[1:]


async def test_who_is_connected_again_can_be_aborted_and_dies_with_the_engine() -> None:
    world = World()
    world.connector.connected = False
    streams = [world.submit(remote_request(name, PROMPT)) for name in "ab"]
    for _ in streams:
        await turns()
        world.connector.waiting.popleft().set_result(None)
    await turns()
    first, second = world.connector.waiting
    assert world.engine.abort("a")
    await turns()
    assert first.cancelled() and not second.done()
    world.engine.dead("gone")
    await turns()
    assert second.cancelled() and not world.engine._handshakes._tasks
    for stream, error in zip(streams, (AbortedError, EngineDeadError), strict=True):
        with pytest.raises(error):
            await anext(stream)


async def test_a_read_from_an_engine_that_is_connected_waits_for_no_handshake() -> None:
    world = World()
    await world.reading("a")
    world.submit(remote_request("b", PROMPT))
    await turns(1)
    assert [type(message) for message in world.link.sent] == [Read, Read]
    assert world.connector.num_asked == 1


async def test_one_turn_of_the_loop_begins_one_handshake_at_most() -> None:
    """Even if it works at once, and what it made is gone at once: others have their turns."""
    world = World()
    world.connector.connected, world.connector.at_once = False, True
    stream = world.submit(remote_request("a", PROMPT))
    other = world.submit(request("b", PROMPT))
    assert len(await collect(other)) == 4
    num_asked = world.connector.num_asked
    await turns(20)
    assert num_asked < world.connector.num_asked <= num_asked + 20
    world.connector.connected = True
    await turns()
    world.link.read()
    assert len(await collect(stream)) == 3


@pytest.mark.parametrize("outcome", ["done", "stale", "failed"])
async def test_a_read_that_has_ended_in_time_has_no_timer_left(outcome: str) -> None:
    world = World()
    stream = await world.reading()
    world.link.read(outcome)
    (timer,) = world.timers
    assert timer.is_cancelled and len(world.engine._read_timers) == 0
    await stream.aclose()


async def test_an_aborted_read_that_does_not_end_is_given_up_though_nobody_waits() -> None:
    """Its P hangs all the same, and its blocks with it."""
    world = World()
    stream = await world.reading()
    await stream.aclose()
    (timer,) = world.timers
    assert not timer.is_cancelled
    timer.fire()
    assert world.link.given_up == [1]
    world.link.read("cancelled")
    assert world.engine.stats().counters.reads_timed_out == 1


async def test_the_loop_measures_the_time() -> None:
    link, connector = HandRank(), HandConnector()
    link.engine = engine = AsyncEngine(config(read_timeout_s=0.001), link, connector)
    link.rank = FakeRank(engine._scheduler.pool, VOCAB)
    stream = engine.submit(remote_request("a", PROMPT))
    await turns()
    connector.waiting.popleft().set_result(None)
    with pytest.raises(ReadFailedError, match="read_timeout"):
        await anext(stream)
    assert link.given_up == [1]


# --- steps that do not end ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("silent", "words"), [([0], "rank 0"), ([2], "rank 2"), ([0, 1], "ranks 0 and 1"), ([0, 1, 3], "ranks 0, 1 and 3")]
)
async def test_ranks_that_do_not_end_a_step_are_the_end(silent: list[int], words: str) -> None:
    ears = Ears()
    world = World(ears.hooks)
    world.link.auto, world.link.silent = False, silent
    stream = await world.started(request("a", PROMPT))
    (timer,) = world.step_timers
    assert timer.delay_s == STEP_TIMEOUT_S
    timer.fire()
    error = f"step 1 has not ended after 77 s (step_timeout_s): no answer from {words}"
    assert ears.of("dead") == [error]
    with pytest.raises(EngineDeadError) as caught:
        await anext(stream)
    assert str(caught.value) == error


async def test_each_step_has_a_timer_of_its_own_until_it_has_ended() -> None:
    world = World(auto=False)
    stream = await world.started(request("a", PROMPT, 2))
    world.link.finish()
    assert [timer.is_cancelled for timer in world.step_timers] == [True, False]
    world.link.finish()
    await turns()
    # The last one has no rows: it only tells the ranks to forget.
    assert isinstance(world.link.sent[-1], Step) and not world.link.sent[-1].rows
    assert [timer.is_cancelled for timer in world.step_timers] == [True, True, False]
    world.link.finish()
    assert all(timer.is_cancelled for timer in world.step_timers)
    assert len(world.engine._step_timers) == 0
    assert len(await collect(stream)) == 2


async def test_the_timer_of_a_step_sent_ahead_starts_when_the_ranks_begin_it() -> None:
    ears = Ears()
    world = World(ears.hooks, steps_ahead=True, auto=False)
    stream = await world.started(request("a", [1], 20))
    assert [message.step_id for message in world.link.sent if isinstance(message, Step)] == [1, 2]
    assert [timer.is_cancelled for timer in world.step_timers] == [False]
    world.link.finish()
    assert [message.step_id for message in world.link.sent if isinstance(message, Step)] == [1, 2, 3]
    assert [timer.is_cancelled for timer in world.step_timers] == [True, False]
    world.step_timers[-1].fire()
    assert [error.partition(" has")[0] for error in ears.of("dead")] == ["step 2"]
    assert (await anext(stream)).token == expected([1], 1)[0]
    with pytest.raises(EngineDeadError):
        await anext(stream)


def num_steps(world: World) -> int:
    return sum(isinstance(message, Step) for message in world.link.sent)


async def test_a_step_is_sent_ahead_shortly_before_the_one_under_way_ends() -> None:
    world = World(steps_ahead=True, auto=False)
    await world.started(request("a", [1], 20))
    world.link.finish()
    assert num_steps(world) == 3, "nothing was known about how long a step takes"
    world.link.finish()
    assert num_steps(world) == 3
    (timer,) = world.timers
    assert timer.delay_s == pytest.approx(0.75 * 0.25)
    timer.fire()
    assert num_steps(world) == 4
    timer.fire()
    assert num_steps(world) == 4


async def test_a_request_that_comes_before_a_step_is_sent_ahead_is_in_the_next_one() -> None:
    world = World(steps_ahead=True, auto=False)
    await world.started(request("a", [1], 20))
    world.link.finish()
    world.link.finish()
    await world.started(request("b", PROMPT, 20))
    world.timers[-1].fire()
    assert num_steps(world) == 3
    world.link.finish()
    step = world.link.sent[-1]
    assert isinstance(step, Step) and len(step.rows) == 2


async def test_a_step_that_has_ended_early_is_followed_by_none_ahead() -> None:
    world = World(steps_ahead=True, auto=False)
    await world.started(request("a", [1], 20))
    for _ in range(3):
        world.link.finish()
    assert num_steps(world) == 4
    world.timers[0].fire()
    assert num_steps(world) == 4
    world.timers[1].fire()
    assert num_steps(world) == 5


async def test_no_step_is_sent_ahead_unless_the_engine_is_to() -> None:
    world = World(auto=False)
    await world.started(request("a", [1], 20))
    world.link.finish()
    assert num_steps(world) == 2
    assert world.timers == []


async def test_a_dead_engine_sends_no_step_ahead() -> None:
    world = World(steps_ahead=True, auto=False)
    await world.started(request("a", [1], 20))
    world.link.finish()
    world.link.finish()
    world.engine.dead("a rank is gone")
    world.timers[-1].fire()
    assert num_steps(world) == 3


async def test_a_stream_ends_with_its_last_token_while_a_step_ahead_runs_and_a_drain_waits_for_that() -> None:
    world = World(steps_ahead=True, auto=False)
    stream = world.submit(request("a", [1], 20, stop_token_ids=frozenset(expected([1], 1))))
    drain = asyncio.create_task(world.engine.drain())
    await turns()
    world.link.finish()
    assert [output.finish for output in await collect(stream)] == [FinishReason.STOP]
    await turns()
    assert not drain.done() and world.pinned == 1
    world.link.finish()
    await turns()
    assert drain.done() and world.pinned == 0


@pytest.mark.parametrize("others", [True, False])
async def test_the_last_answer_goes_before_what_the_ranks_are_told_and_any_other_after(others: bool) -> None:
    """The ranks wait for the next step of others. To forget a sequence is not urgent."""
    world = World(auto=False)
    stream = world.submit(request("a", PROMPT, 1))
    other = world.submit(request("b", PROMPT, 2)) if others else None
    await turns()
    seen: list[int] = []

    async def read() -> None:
        await anext(stream)
        seen.append(len(world.link.sent))

    reading = asyncio.create_task(read())
    await turns()
    num_sent = len(world.link.sent)
    world.link.finish()
    await reading
    assert seen == [num_sent + others]
    await turns()
    assert len(world.link.sent) == num_sent + 1
    if other is not None:
        await other.aclose()


async def test_a_rank_that_hangs_while_it_reads_is_found_too() -> None:
    ears = Ears()
    world = World(ears.hooks, auto=False)
    stream = await world.reading()
    assert world.step_timers == []
    world.timers[0].fire()
    with pytest.raises(ReadFailedError):
        await anext(stream)
    (timer,) = world.step_timers
    timer.fire()
    assert len(ears.of("dead")) == 1


# --- reads that end badly ----------------------------------------------------------------------------------------


async def test_a_read_that_is_failing_is_told_at_once_and_watched_until_it_has_ended() -> None:
    world = World()
    stream = await world.reading()
    world.engine.on_rank_event(ReadFailing(1, "rank 1: P is gone"))
    with pytest.raises(ReadFailedError, match="rank 1: P is gone"):
        await anext(stream)
    assert world.pinned == 2
    assert world.link.given_up == [], "whoever told it has cancelled it"
    (timer,) = world.timers
    assert not timer.is_cancelled
    world.engine.on_rank_event(ReadFailing(1, "again"))
    world.link.read("failed")
    assert timer.is_cancelled
    assert world.pinned == 0


@pytest.mark.parametrize("end", ["close", "dead"])
async def test_no_timer_outlives_the_engine(end: str) -> None:
    world = World(auto=False)
    await world.reading()
    await world.started(request("b", PROMPT))
    if end == "close":
        await world.engine.close()
    else:
        world.engine.dead("gone")
    assert [timer.is_cancelled for timer in (*world.timers, *world.step_timers)] == [True, True]


async def test_a_hand_off_is_known_by_its_request_before_the_caller_sees_it() -> None:
    world = World()
    stream = world.submit(request("a", PROMPT, 1, hand_off=True))
    async with asyncio.timeout(PATIENCE_S):
        while not world.engine.leases.of("a"):
            assert world.engine._scheduler._sequences.by_request, "neither a sequence nor a lease of the request"
            await asyncio.sleep(0)
    assert not world.engine.abort("a"), "it is a lease now, not a sequence"
    (output,) = await collect(stream)
    assert output.hand_off is not None
    assert world.engine.leases.of("a") == [output.hand_off.lease_id]
    assert world.engine.leases.of("b") == []


async def test_a_read_by_a_peer_ends_the_lease_and_the_keeper_is_told() -> None:
    ears = Ears()
    world = World(ears.hooks)
    hand_off = await world.hand_off("a", PROMPT)
    world.engine.on_rank_event(LeaseRead("never heard of"))
    assert world.engine.load().leases == 1
    world.engine.on_rank_event(LeaseRead(hand_off.lease_id))
    assert ears.of("lease_end")[1:] == [(hand_off.lease_id, LeaseState.DONE)]
    assert not world.engine.end_lease(hand_off.lease_id, LeaseState.RELEASED)
    assert hand_off.lease_id not in world.engine.leases and world.engine.leases.of("a") == []
    assert world.engine.load().leased_blocks == 0


@pytest.mark.parametrize("keeper", [False, True])
async def test_a_hand_off_to_ourselves_needs_no_handshake_and_no_read(keeper: bool) -> None:
    ears = Ears()
    world = World(ears.hooks if keeper else None, engine_id="us")
    hand_off = await world.hand_off("p", PROMPT)
    remote = params_of(hand_off, PROMPT, "us")
    outputs = await collect(world.submit(request("d", PROMPT, 4, remote=remote)))
    assert [output.token for output in outputs] == expected(PROMPT, 4)[1:]
    assert [type(message) for message in world.link.sent if not isinstance(message, Step)] == []
    assert not world.connector.waiting
    assert ears.of("lease_end") == ([(hand_off.lease_id, LeaseState.DONE)] if keeper else [])
    assert hand_off.lease_id not in world.engine.leases
    assert world.engine.stats().counters.local_handoffs == 1
    assert world.engine.stats().counters.prefill_tokens == len(PROMPT)
    await world.engine.drain()


async def test_pressure_is_told_once_until_a_lease_ends() -> None:
    ears = Ears()
    world = World(ears.hooks, num_blocks=4)
    leases = [(await world.hand_off(name, [number] * 5)).lease_id for number, name in enumerate("ab")]
    stream = await world.started(request("c", [7] * 13, 1))
    world.engine.abort("nobody")
    other = await world.started(request("d", [8], 1))
    assert ears.of("pressure") == [None]
    world.engine.end_lease(leases[0], LeaseState.RELEASED)
    await turns()
    assert ears.of("pressure") == [None, None]
    world.engine.end_lease(leases[1], LeaseState.RELEASED)
    assert len(await collect(stream)) == len(await collect(other)) == 1
    assert ears.of("pressure") == [None, None]


async def test_pressure_may_be_answered_at_once() -> None:
    leases: list[str] = []
    world = World(
        EngineHooks(on_pressure=lambda: world.engine.end_lease(leases.pop(), LeaseState.RELEASED)), num_blocks=4
    )
    leases.append((await world.hand_off("a", [1] * 5)).lease_id)
    leases.append((await world.hand_off("b", [2] * 5)).lease_id)
    assert len(await collect(world.submit(request("c", [7] * 13, 1)))) == 1


# --- the end -----------------------------------------------------------------------------------------------------


async def test_drain_takes_nothing_new_and_waits_for_work_and_leases() -> None:
    world = World()
    running = world.submit(request("a", PROMPT))
    hand_off = await world.hand_off("b", PROMPT)
    draining = asyncio.create_task(world.engine.drain())
    await turns()
    with pytest.raises(DrainingError):
        await anext(world.submit(request("c", PROMPT)))
    assert world.engine.load().draining
    assert len(await collect(running)) == 4
    await turns()
    assert not draining.done()
    world.engine.end_lease(hand_off.lease_id, LeaseState.RELEASED)
    await draining


async def test_draining_can_be_ended_and_begun_again() -> None:
    world = World()
    world.engine.begin_drain()
    world.engine.end_drain()
    assert not world.engine.load().draining
    running = world.submit(request("a", PROMPT))
    draining = asyncio.create_task(world.engine.drain())
    await turns(1)
    assert not draining.done(), "what was quiet in the first draining is not quiet in the second"
    assert len(await collect(running)) == 4
    await draining


async def test_drain_waits_for_an_aborted_read() -> None:
    world = World()
    stream = await world.reading()
    await stream.aclose()
    draining = asyncio.create_task(world.engine.drain())
    await turns()
    assert not draining.done()
    world.link.read("cancelled")
    await draining


@pytest.mark.parametrize("first", ["abort", "failing", "drain"])
async def test_drain_does_not_wait_for_a_read_that_may_never_end(first: str) -> None:
    world = World()
    stream = await world.reading()
    if first == "abort":
        world.engine.abort("a")
    elif first == "failing":
        world.engine.on_rank_event(ReadFailing(1, "no"))
    draining = asyncio.create_task(world.engine.drain())
    await turns()
    assert not draining.done()
    world.timers[0].fire()
    await draining
    assert world.pinned == 2
    with pytest.raises(AbortedError if first == "abort" else ReadFailedError):
        await anext(stream)


async def test_a_read_that_may_never_end_does_not_hide_the_pressure() -> None:
    ears = Ears()
    world = World(ears.hooks, num_blocks=4)
    lease = (await world.hand_off("a", [7] * 5)).lease_id
    await (await world.reading("b")).aclose()
    waiting = await world.started(request("c", [8], 1))
    assert ears.of("pressure") == [], "the read may end any moment"
    world.timers[0].fire()
    await turns()
    assert ears.of("pressure") == [None]
    world.engine.end_lease(lease, LeaseState.RELEASED)
    assert len(await collect(waiting)) == 1
    world.engine.audit()()


async def test_drain_ends_with_the_last_failed_handshake() -> None:
    world = World()
    stream = world.submit(remote_request("a", PROMPT))
    draining = asyncio.create_task(world.engine.drain())
    await turns()
    world.connector.waiting.popleft().set_exception(ConnectionError())
    await draining
    await stream.aclose()


async def test_cancelling_drain_only_stops_the_waiting() -> None:
    world = World()
    await world.hand_off("a", PROMPT)
    draining = asyncio.create_task(world.engine.drain())
    await turns()
    draining.cancel()
    with pytest.raises(asyncio.CancelledError):
        await draining
    with pytest.raises(DrainingError):
        await anext(world.submit(request("b", PROMPT)))


async def test_a_dead_rank_is_told_to_everybody_now_and_later() -> None:
    ears = Ears()
    world = World(ears.hooks, auto=False)
    streams = [world.submit(request("a", PROMPT)), await world.reading("b")]
    world.connector.met = False
    streams.append(world.submit(remote_request("c", PROMPT)))
    await turns()
    (handshake,) = world.connector.waiting
    world.engine.on_rank_event(RankFailed("out of memory"))
    world.engine.dead("connection lost")
    late = world.submit(request("d", PROMPT))
    for stream, code in [(stream, "engine_dead") for stream in streams] + [(late, "engine_gone")]:
        with pytest.raises(EngineDeadError, match="out of memory") as caught:
            await anext(stream)
        assert caught.value.code == code
        await stream.aclose()
    assert late.is_refused
    await turns()
    assert handshake.cancelled()
    assert ears.of("dead") == ["out of memory"]
    assert not world.engine.abort("a")
    await world.engine.drain()


async def test_late_answers_to_a_dead_engine_are_ignored() -> None:
    world = World()
    await world.reading()
    world.engine.dead("gone")
    world.engine.on_rank_event(StepResult(7, [], 0.0))
    world.link.read()
    assert world.engine.end_lease("x", LeaseState.RELEASED) is False


@pytest.mark.parametrize("answer", [StepResult(7, [], 0.0), ReadResult(7, "done", 0, 0.0, "")])
async def test_a_rank_that_answers_what_it_was_not_asked_is_fatal(answer: StepResult | ReadResult) -> None:
    world = World(auto=False)
    stream = await world.started(request("a", PROMPT))
    world.engine.on_rank_event(answer)
    with pytest.raises(EngineDeadError, match="RankProtocolError"):
        await anext(stream)


async def test_a_bug_leaves_nobody_waiting() -> None:
    world = World()
    world.link.error = ZeroDivisionError("a bug")
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    with pytest.raises(EngineDeadError, match="a bug"):
        await anext(world.submit(request("a", PROMPT)))
    assert [context["exception"] for context in reported] == [world.link.error]


async def test_close_ends_everything_without_a_word_to_the_dead_hook() -> None:
    ears = Ears()
    world = World(ears.hooks)
    stream = world.submit(remote_request("a", PROMPT))
    local = world.submit(request("b", PROMPT))
    await turns(1)
    await world.engine.close()
    await world.engine.close()
    for ended in (stream, local):
        with pytest.raises(EngineDeadError, match="closed"):
            await anext(ended)
    assert ears.of("dead") == []
    assert not world.engine._handshakes._tasks


async def test_the_repr_tells_the_state() -> None:
    world = World()
    assert "serving" in repr(world.engine)
    assert "16 blocks: 16 free" in repr(world.engine)
    world.engine.begin_drain()
    assert "draining" in repr(world.engine)
    world.engine.dead("gone")
    assert "dead (gone)" in repr(world.engine)
