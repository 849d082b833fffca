"""The scheduler against ranks that notice every wrong block: random arrivals, aborts, reads, leases, tiny caches.

There are one to three ranks. Each gets its messages and gives its answers when it likes, and its part of a read may end
in any way, late, or be told again; what the scheduler hears is what ``RankFacade`` makes of that.

Some requests want the logprobs of their prompts: each token's come once, with what depends on all tokens before it.

There are two P's. Each may be lost at any time, and is stuck while a read from it was given up and has not ended. No
read is ever posted to one that is lost or stuck, and whoever wanted to is connected again.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from baton_serve.core.protocol.handoff import KVTransferParams
from baton_serve.core.protocol.steps import ReadResult, SamplingParams, Step, StepResult, TransferReport
from baton_serve.workers.engine.api import (
    EngineRequest,
    FinishReason,
    HandOff,
    PromptOutput,
    PromptTooLongError,
    QueueFullError,
    ReadFailedError,
    TokenOutput,
)
from baton_serve.workers.engine.config import EngineConfig
from baton_serve.workers.engine.ports import ReadFailing
from baton_serve.workers.engine.scheduling.scheduler import Scheduler
from baton_serve.workers.engine.sequences.sequence_state import State
from baton_serve.workers.rank_group.rank_facade import RankFacade
from tests.kits.engine.fake_rank import PROMISE, FakeGroup, FakeRank, next_token, remote_blocks, score, values
from tests.kits.engine.rank_sinks import KeptPeers

VOCAB = 5
#: Prompts are pieces of these two, so that prefixes are often shared and often differ late.
BASES = ([1, 2, 3, 4] * 16, [1, 2, 3, 4, 1, 2, 3, 4, 1, 2] + [0, 4, 2] * 18)

prompts = st.tuples(st.sampled_from(BASES), st.integers(1, 40)).map(lambda pick: pick[0][: pick[1]])
#: Most prompts are cut to what the cache holds.
fits = st.sampled_from([True, True, True, True, False])
outcomes = st.sampled_from(["done", "done", "stale", "stale", "failed"])


@dataclass
class Caller:
    """What a caller asked for and got."""

    request: EngineRequest
    given: list[int]
    outputs: list[TokenOutput] = field(default_factory=list)
    of_prompt: list[PromptOutput] = field(default_factory=list)
    error: Exception | None = None
    aborted: bool = False

    @property
    def is_over(self) -> bool:
        return self.aborted or self.error is not None or self.finish is not None

    @property
    def finish(self) -> FinishReason | None:
        last = [*self.of_prompt, *self.outputs][-1:]
        return last[0].finish if last else None


@dataclass
class Promise:
    """What P promised with a lease."""

    hand_off: HandOff
    prompt: list[int]
    held: bool = True


def reference(request: EngineRequest, given: list[int], max_total: int) -> tuple[list[int], FinishReason]:
    """Tokens a caller must get, and why they end."""
    tokens, out = request.prompt_token_ids + given, []
    if request.max_tokens == 0:
        return [], FinishReason.LENGTH
    while True:
        token = next_token(values(tokens)[-1], VOCAB)
        tokens = [*tokens, token]
        out.append(token)
        if token in request.stop_token_ids:
            return out, FinishReason.STOP
        if request.hand_off or len(given) + len(out) >= request.max_tokens or len(tokens) >= max_total:
            return out, FinishReason.LENGTH


def params(prompt: list[int], hand_off: HandOff, engine_id: str, first: int) -> KVTransferParams:
    return KVTransferParams(
        do_remote_prefill=True,
        do_remote_decode=False,
        remote_engine_id=engine_id,
        remote_request_id="r",
        remote_host="127.0.0.1",
        remote_port=1,
        remote_block_ids=[hand_off.block_ids],
        remote_num_tokens=len(prompt),
        lease_id=hand_off.lease_id,
        promise=hand_off.promise,
        first_token=first,
        prompt_token_ids=prompt,
    )


class WatchedPeers(KeptPeers):
    """Knows which engines can be read from, and lets nobody read from another one."""

    def __init__(self) -> None:
        super().__init__()
        self.known: set[str] = set()

    def is_stuck(self, engine_id: str) -> bool:
        return any(self.reading.get(read_id) == engine_id for read_id in self.given_up)

    def is_connected(self, engine_id: str) -> bool:
        return engine_id in self.known and not self.is_stuck(engine_id)

    def read_started(self, engine_id: str, read_id: int, /) -> None:
        assert self.is_connected(engine_id), f"read {read_id} was posted to {engine_id}, which is lost or stuck"
        super().read_started(engine_id, read_id)

    def read_ended(self, engine_id: str, read_id: int, /, *, failed: bool) -> None:
        super().read_ended(engine_id, read_id, failed=failed)
        if failed:
            self.known.discard(engine_id)


class Simulation(RuleBasedStateMachine):
    """Rules are what may happen to an engine, in any order."""

    @initialize(
        num_blocks=st.integers(4, 20),
        block_size=st.sampled_from([1, 3, 4]),
        max_num_seqs=st.integers(1, 5),
        more_tokens=st.integers(0, 8),
        max_waiting=st.sampled_from([1, 1000, 1000, 1000, 1000]),
        prefix_cache=st.sampled_from([True, True, True, False]),
        num_ranks=st.sampled_from([1, 2, 3]),
    )
    def start(
        self,
        num_blocks: int,
        block_size: int,
        max_num_seqs: int,
        more_tokens: int,
        max_waiting: int,
        prefix_cache: bool,
        num_ranks: int,
    ) -> None:
        self.config = EngineConfig(
            num_blocks=num_blocks,
            block_size=block_size,
            max_model_len=48,
            vocab_size=VOCAB,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_seqs + more_tokens,
            max_waiting=max_waiting,
            prefix_cache=prefix_cache,
            engine_id="us",
        )
        lease_ids = (f"lease-{number}" for number in itertools.count())
        self.peers = WatchedPeers()
        self.scheduler = Scheduler(self.config, 2**63 - 1, lambda: next(lease_ids), self.peers.is_connected)
        #: Sequences whose handshake is under way.
        self.connecting: set[int] = set()
        self.group = FakeGroup([FakeRank(self.scheduler.pool, VOCAB) for _ in range(num_ranks)])
        self.traffic = RankFacade(self.group.send, self.peers, num_ranks)
        self.traffic.on_event = self.hear
        self.said: list[tuple[int, TransferReport]] = []
        self.timed_out: set[int] = set()
        self.ended_reads: set[int] = set()
        self.callers: dict[int, Caller] = {}
        self.promises: list[Promise] = []
        self.number = 0
        #: The request id of the next request, if it is to be one that was asked before.
        self.asked_before = ""

    # --- arrivals -----------------------------------------------------------------------------------------------

    def cut(self, prompt: list[int], fits: bool) -> list[int]:
        """The prompt, or as much of it as this engine takes."""
        return prompt[: self.config.max_total_tokens - 2] if fits else prompt

    def request(self, prompt: list[int], **fields: object) -> EngineRequest:
        self.number += 1
        request_id, self.asked_before = self.asked_before or f"request-{self.number}", ""
        sampling = SamplingParams(num_prompt_logprobs=fields.pop("scored", None))
        return EngineRequest(request_id=request_id, prompt_token_ids=prompt, sampling=sampling, **fields)

    @precondition(lambda self: self.callers)
    @rule(data=st.data())
    def ask_again(self, data: st.DataObject) -> None:
        """The next request has the id of an earlier one, which has ended, closes, or goes on."""
        seq_id = data.draw(st.sampled_from(list(self.callers)))
        self.asked_before = self.callers[seq_id].request.request_id

    def older(self, request: EngineRequest) -> int | None:
        """The sequence that the request takes the place of."""
        found = [
            seq_id
            for seq_id, caller in self.callers.items()
            if caller.request.request_id == request.request_id and not caller.is_over
        ]
        assert len(found) <= 1 and self.scheduler.current(request.request_id) == (found[0] if found else None)
        return found[0] if found else None

    def submit(self, request: EngineRequest, given: list[int]) -> None:
        older = self.older(request)
        num_waiting = self.scheduler.load().waiting
        if older is not None and self.scheduler.state.sequences.by_id[older].state not in (
            State.RUNNING,
            State.READING,
        ):
            num_waiting -= 1
        needed = len(request.prompt_token_ids) + len(given) + 1
        if needed > self.config.max_total_tokens:
            with pytest.raises(PromptTooLongError):
                self.scheduler.add(request)
        elif num_waiting >= self.config.max_waiting:
            with pytest.raises(QueueFullError):
                self.scheduler.add(request)
        else:
            seq_id = self.scheduler.add(request)
            if older is not None:
                self.callers[older].aborted = True
                self.connecting.discard(older)
            self.callers[seq_id] = Caller(request, given)
            if request.remote is not None and request.remote.remote_engine_id != "us":
                self.connecting.add(seq_id)

    @rule(
        prompt=prompts,
        fits=fits,
        max_tokens=st.integers(1, 20),
        stops=st.frozensets(st.integers(0, VOCAB - 1), max_size=1),
        priority=st.integers(0, 2),
    )
    def submit_local(
        self, prompt: list[int], fits: bool, max_tokens: int, stops: frozenset[int], priority: int
    ) -> None:
        prompt = self.cut(prompt, fits)
        self.submit(self.request(prompt, max_tokens=max_tokens, stop_token_ids=stops, priority=priority), [])

    @rule(prompt=prompts, fits=fits, max_tokens=st.integers(0, 6), scored=st.none() | st.integers(0, 2))
    def submit_for_its_prompt(self, prompt: list[int], fits: bool, max_tokens: int, scored: int | None) -> None:
        self.submit(self.request(self.cut(prompt, fits), max_tokens=max_tokens, scored=scored), [])

    @rule(prompt=prompts, fits=fits, stops=st.frozensets(st.integers(0, VOCAB - 1), max_size=1))
    def submit_hand_off(self, prompt: list[int], fits: bool, stops: frozenset[int]) -> None:
        request = self.request(self.cut(prompt, fits), max_tokens=1, stop_token_ids=stops, hand_off=True)
        self.submit(request, [])

    @precondition(lambda self: self.promises)
    @rule(data=st.data(), more=st.lists(st.integers(0, VOCAB - 1), max_size=6), hand_off=st.booleans())
    def submit_the_next_turn(self, data: st.DataObject, more: list[int], hand_off: bool) -> None:
        """The same prompt again, or a longer one, perhaps while the blocks are still leased."""
        prompt = data.draw(st.sampled_from(self.promises)).prompt + more
        self.submit(self.request(prompt, max_tokens=1 if hand_off else 8, hand_off=hand_off), [])

    @rule(
        prompt=prompts,
        fits=fits,
        max_tokens=st.integers(2, 20),
        has_first=st.booleans(),
        priority=st.integers(0, 2),
        engine_id=st.sampled_from("pq"),
        is_known=st.booleans(),
    )
    def submit_remote(
        self,
        prompt: list[int],
        fits: bool,
        max_tokens: int,
        has_first: bool,
        priority: int,
        engine_id: str,
        is_known: bool,
    ) -> None:
        """P's blocks are to be read; with ``is_known`` all handshakes end now."""
        prompt = self.cut(prompt, fits)
        first = next_token(values(prompt)[-1], VOCAB) if has_first else -1
        hand_off = HandOff("theirs", remote_blocks(prompt, self.config.block_size), PROMISE)
        remote = params(prompt, hand_off, engine_id, first)
        request = self.request(prompt, max_tokens=max_tokens, remote=remote, priority=priority)
        self.submit(request, [first] if has_first else [])
        if is_known:
            for seq_id in sorted(self.connecting):
                self.meet(seq_id)
            self.pump()

    @precondition(lambda self: self.promises)
    @rule(
        data=st.data(),
        max_tokens=st.integers(2, 20),
        has_first=st.sampled_from([True, True, True, False]),
        lies=st.sampled_from([False, False, False, True]),
        priority=st.integers(0, 2),
    )
    def submit_to_ourselves(
        self, data: st.DataObject, max_tokens: int, has_first: bool, lies: bool, priority: int
    ) -> None:
        """D is P: the lease may hold the blocks, or have ended, or hold something else than is said."""
        promise = data.draw(st.sampled_from(self.promises))
        prompt = promise.prompt
        if lies:
            prompt = [(token + 1) % VOCAB for token in prompt]
        first = next_token(values(prompt)[-1], VOCAB) if has_first else -1
        remote = params(prompt, promise.hand_off, "us", first)
        request = self.request(prompt, max_tokens=max_tokens, remote=remote, priority=priority)
        self.submit(request, [first] if has_first else [])

    # --- what goes on -------------------------------------------------------------------------------------------

    def in_state(self, state: State) -> list[int]:
        return [seq.id for seq in self.scheduler.state.sequences.by_id.values() if seq.state is state]

    @precondition(lambda self: self.connecting)
    @rule(data=st.data(), ok=st.sampled_from([True, True, True, False]))
    def end_handshake(self, data: st.DataObject, ok: bool) -> None:
        self.meet(data.draw(st.sampled_from(sorted(self.connecting))), ok)

    def meet(self, seq_id: int, ok: bool = True) -> None:
        """A handshake ends. With an engine whose read is stuck none does well."""
        self.connecting.remove(seq_id)
        engine_id = self.engine_of(seq_id)
        if not ok or self.peers.is_stuck(engine_id):
            self.deliver(self.scheduler.connect_failed(seq_id, "refused"))
        else:
            self.peers.known.add(engine_id)
            self.scheduler.connected(seq_id)

    def engine_of(self, seq_id: int) -> str:
        remote = self.callers[seq_id].request.remote
        assert remote is not None
        return remote.remote_engine_id

    @rule(engine_id=st.sampled_from("pq"))
    def lose(self, engine_id: str) -> None:
        """A rank has lost the engine, or it was forgotten to make room for others."""
        self.peers.known.discard(engine_id)

    @rule()
    def pump(self) -> None:
        for command in self.scheduler.schedule():
            self.traffic.send(command)
            if isinstance(command, Step):
                assert sum(row.num_tokens for row in command.rows) <= self.config.max_num_batched_tokens
                assert len(command.rows) <= self.config.max_num_seqs
        self.reconnect()
        for lease_id in self.scheduler.local_handoff.drain():
            (promise,) = [promise for promise in self.promises if promise.hand_off.lease_id == lease_id]
            assert promise.held
            promise.held = False
            assert not self.scheduler.state.end_lease(lease_id)

    @rule()
    def go_ahead(self) -> None:
        """The step under way is about to end."""
        is_lone = self.scheduler.under_way.lone is not None
        commands = self.scheduler.schedule_ahead()
        assert is_lone or not commands
        for command in commands:
            self.traffic.send(command)

    def reconnect(self) -> None:
        """Each handshake that has to be made again is begun once, for a sequence that holds nothing meanwhile."""
        for seq_id, remote in self.scheduler.drain_disconnected():
            assert seq_id not in self.connecting
            assert not self.peers.is_connected(remote.remote_engine_id) and remote.remote_engine_id in "pq"
            assert self.scheduler.state.sequences.by_id[seq_id].blocks == []
            self.connecting.add(seq_id)
        assert self.scheduler.drain_disconnected() == []

    @rule(rank=st.integers(0, 2))
    def lag(self, rank: int) -> None:
        """What is sent to this rank arrives later."""
        self.group.lagging.add(rank)

    @precondition(lambda self: self.group.lagging)
    @rule(data=st.data())
    def catch_up(self, data: st.DataObject) -> None:
        self.group.catch_up(data.draw(st.sampled_from(sorted(self.group.lagging))))

    @precondition(lambda self: self.group.computing)
    @rule(data=st.data(), pump=st.booleans())
    def finish_step(self, data: st.DataObject, pump: bool) -> None:
        self.end_step(data.draw(st.sampled_from(self.group.computing)))
        if pump:
            self.pump()

    def end_step(self, rank: int) -> None:
        self.traffic.handle(rank, self.group.ranks[rank].finish_step())

    @precondition(lambda self: self.group.computing or self.group.reading)
    @rule(data=st.data(), count=st.integers(2, 12))
    def go_on(self, data: st.DataObject, count: int) -> None:
        """A good while passes: several steps and parts end, in any order."""
        for _ in range(count):
            moves = [*self.group.computing, *self.group.reading]
            if not moves:
                return
            move = data.draw(st.sampled_from(moves))
            if isinstance(move, int):
                self.end_step(move)
            else:
                self.end_somehow(data, *move, data.draw(outcomes))
            self.pump()

    @precondition(lambda self: self.group.reading)
    @rule(data=st.data(), outcome=outcomes)
    def finish_part(self, data: st.DataObject, outcome: str) -> None:
        rank, read_id = data.draw(st.sampled_from(self.group.reading))
        self.end_somehow(data, rank, read_id, outcome)

    def end_somehow(self, data: st.DataObject, rank: int, read_id: int, outcome: str) -> None:
        """One rank's part of a read has ended."""
        fake = self.group.ranks[rank]
        if outcome == "failed" and read_id in fake.cancelled:
            outcome = "cancelled"
        num_blocks = len(fake.reads[read_id].local_block_ids)
        if outcome == "stale" and not num_blocks:
            outcome = "done"
        indexes = st.sets(st.integers(0, max(num_blocks - 1, 0)), min_size=1)
        stale = data.draw(st.none() | indexes) if outcome == "stale" else None
        self.end_part(rank, read_id, outcome, None if stale is None else sorted(stale))

    def end_part(self, rank: int, read_id: int, outcome: str, stale: list[int] | None = None) -> None:
        seq = self.scheduler.state.sequences.read_of(read_id)
        assert seq is not None
        part = self.group.ranks[rank].finish_read(read_id, outcome, seq.request.prompt_token_ids, stale)
        self.said.append((rank, TransferReport([], [part])))
        self.traffic.handle(*self.said[-1])

    @precondition(lambda self: self.said)
    @rule(data=st.data())
    def say_again(self, data: st.DataObject) -> None:
        """Late, or for the second time: nothing follows from it."""
        ended = set(self.ended_reads)
        self.traffic.handle(*data.draw(st.sampled_from(self.said)))
        assert self.ended_reads == ended

    def reads_in_time(self) -> list[int]:
        sequences = self.scheduler.state.sequences
        return sorted({*sequences.reads, *sequences.closing_reads} - self.timed_out)

    @precondition(lambda self: self.reads_in_time())
    @rule(data=st.data())
    def time_out(self, data: st.DataObject) -> None:
        """A read takes too long, whether or not somebody waits for it, or some of it has failed."""
        read_id = data.draw(st.sampled_from(self.reads_in_time()))
        self.timed_out.add(read_id)
        self.traffic.give_up_read(read_id)
        self.deliver(self.scheduler.time_out_read(read_id))
        assert read_id not in self.scheduler.state.sequences.reads

    def hear(self, event: object) -> None:
        """What the ranks have said, as one."""
        if isinstance(event, StepResult):
            for output in self.scheduler.apply_step(event):
                self.deliver(output)
        elif isinstance(event, ReadResult):
            assert event.read_id not in self.ended_reads, "a read ended twice"
            assert not any(read_id == event.read_id for _, read_id in self.group.reading), "somebody may still write"
            self.ended_reads.add(event.read_id)
            self.deliver(self.scheduler.apply_read(event))
        else:
            assert isinstance(event, ReadFailing), event
            self.deliver(self.scheduler.reads.give_up(event.read_id, event.error))

    def deliver(self, output: tuple[int, TokenOutput | PromptOutput | Exception] | None) -> None:
        if output is None:
            return
        seq_id, item = output
        caller = self.callers[seq_id]
        assert not caller.is_over, "something came after the end"
        if isinstance(item, Exception):
            assert isinstance(item, ReadFailedError)
            assert caller.request.remote is not None
            assert not caller.outputs
            caller.error = item
            return
        if isinstance(item, PromptOutput):
            assert not caller.outputs, "something of the prompt came after a token"
            caller.of_prompt.append(item)
            return
        caller.outputs.append(item)
        if item.hand_off is not None:
            self.promises.append(Promise(item.hand_off, caller.request.prompt_token_ids))
            self.read_as_peer(self.promises[-1])

    @precondition(lambda self: any(not caller.is_over for caller in self.callers.values()))
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        seq_id = data.draw(st.sampled_from([key for key, caller in self.callers.items() if not caller.is_over]))
        caller = self.callers[seq_id]
        caller.aborted = True
        assert self.scheduler.abort(caller.request.request_id) == seq_id
        assert self.scheduler.abort(caller.request.request_id) is None
        self.connecting.discard(seq_id)

    # --- leases -------------------------------------------------------------------------------------------------

    @precondition(lambda self: any(promise.held for promise in self.promises))
    @rule(data=st.data())
    def end_lease(self, data: st.DataObject) -> None:
        self.end(data.draw(st.sampled_from([promise for promise in self.promises if promise.held])))

    def end(self, promise: Promise) -> None:
        promise.held = False
        assert self.scheduler.state.end_lease(promise.hand_off.lease_id)
        assert not self.scheduler.state.end_lease(promise.hand_off.lease_id)

    @precondition(lambda self: self.promises)
    @rule(data=st.data())
    def peer_reads(self, data: st.DataObject) -> None:
        self.read_as_peer(data.draw(st.sampled_from(self.promises)))

    def read_as_peer(self, promise: Promise) -> None:
        """The fence: versions as promised mean equal data, lease or no lease. The lease: they stay as promised."""
        blocks = promise.hand_off.block_ids
        for rank in self.group.ranks:
            is_good = all(rank.versions[block] <= promise.hand_off.promise for block in blocks)
            assert is_good or not promise.held, "a leased block was overwritten"
            if is_good:
                assert rank.content(blocks, len(promise.prompt)) == values(promise.prompt)

    # --- what always holds --------------------------------------------------------------------------------------

    @invariant()
    def ledger_balances(self) -> None:
        if hasattr(self, "scheduler"):
            self.scheduler.state.check()

    @invariant()
    def who_connects_has_a_handshake(self) -> None:
        if hasattr(self, "scheduler"):
            assert self.in_state(State.CONNECTING) == sorted(self.connecting)

    @invariant()
    def an_overdue_read_is_neither_work_nor_movement(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        sequences = self.scheduler.state.sequences
        others = [
            seq
            for seq in sequences.by_id.values()
            if seq.read_id not in self.timed_out & sequences.closing_reads.keys()
        ]
        leases = self.scheduler.load().leases
        assert self.scheduler.is_quiet == (not others and not leases)
        if not self.scheduler.under_way and len(sequences.queue) == len(others) > 0:
            assert self.scheduler.is_starved == bool(leases)

    @invariant()
    def load_counts_the_slots_taken(self) -> None:
        """What the router takes for room is room."""
        if hasattr(self, "scheduler"):
            load = self.scheduler.load()
            assert load.running == len(self.in_state(State.RUNNING))
            assert load.reading == len(self.in_state(State.READING))
            assert load.running + load.reading <= self.config.max_num_seqs

    @rule()
    def room_is_used(self) -> None:
        """After planning, who is next in the queue waits for a slot, for blocks, or for the step to end."""
        self.pump()
        state, load = self.scheduler.state, self.scheduler.load()
        head = state.sequences.queue.first
        has_slot = load.running + load.reading < self.config.max_num_seqs
        assert not (has_slot and state.sequences.awaiting_handoff), "such a sequence needs nothing but a slot"
        if head is None or load.running + load.reading == self.config.max_num_seqs:
            return
        if not self.scheduler.under_way or head.state is State.CONNECTED:
            spare = self.config.num_spare_blocks
            assert head.num_blocks_needed + spare > state.pool.num_available, "somebody waits beside a free slot"

    def teardown(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        for _ in range(10_000):
            if not self.move_on():
                break
        assert not self.scheduler.state.sequences.by_id, "somebody waits for ever"
        for promise in self.promises:
            self.read_as_peer(promise)
            if promise.held:
                self.end(promise)
        self.check_answers()
        self.check_end()

    def move_on(self) -> bool:
        """Let everything go right from here on; False once nothing moves."""
        self.pump()
        for rank in list(self.group.lagging):
            self.group.catch_up(rank)
        for seq_id in sorted(self.connecting):
            self.meet(seq_id)
            return True
        for rank, read_id in self.group.reading:
            self.end_part(rank, read_id, "done")
            return True
        for rank in self.group.computing:
            self.end_step(rank)
            return True
        if self.scheduler.is_starved:
            self.end(next(promise for promise in self.promises if promise.held))
            return True
        return False

    def check_answers(self) -> None:
        for caller in self.callers.values():
            expected, finish = reference(caller.request, caller.given, self.config.max_total_tokens)
            tokens = [output.token for output in caller.outputs]
            assert caller.is_over
            self.check_scores(caller)
            if caller.aborted or caller.error:
                assert tokens == expected[: len(tokens)]
                continue
            assert tokens == expected
            assert caller.finish is finish
            if not tokens:
                continue
            is_cut = len(caller.request.prompt_token_ids) + len(tokens) >= self.config.max_total_tokens
            is_handed_off = caller.request.hand_off and finish is not FinishReason.STOP and not is_cut
            assert (caller.outputs[-1].hand_off is not None) == is_handed_off

    def check_scores(self, caller: Caller) -> None:
        prompt, num_top = caller.request.prompt_token_ids, caller.request.sampling.num_prompt_logprobs
        scores = [output.scores for output in caller.of_prompt if output.scores is not None]
        if num_top is None:
            assert scores == []
            return
        num_scored = sum(len(one.logprobs) for one in scores)
        if caller.finish is not None:
            assert num_scored == len(prompt) - 1
        logprobs, ranks, tops = score(prompt, 1, 1 + num_scored, num_top)
        ends = [one.start + len(one.logprobs) for one in scores]
        assert [one.start for one in scores] == [1, *ends][: len(scores)]
        assert [logprob for one in scores for logprob in one.logprobs] == logprobs
        assert [rank for one in scores for rank in one.ranks] == ranks
        assert [top for one in scores for top in one.top_tokens] == tops

    def check_end(self) -> None:
        stats = self.scheduler.pool.stats()
        assert stats.free + stats.cached == stats.total
        assert not any(rank.records for rank in self.group.ranks), "a rank was never told to forget"
        assert not self.group.reading
        assert not self.peers.reading, "the pool waits for a read that has ended"
        assert self.scheduler.is_quiet
        ended = self.scheduler.counters.ended
        assert sum(ended.values()) == len(self.callers)
        assert ended["failed"] == sum(caller.error is not None for caller in self.callers.values())
        assert ended["aborted"] == sum(caller.aborted for caller in self.callers.values())
        assert self.scheduler.counters.reads_timed_out == len(self.peers.given_up) == len(self.timed_out)
        assert sum(self.scheduler.counters.reads.values()) == len(self.ended_reads)
        self.scheduler.state.check()


def cases(max_examples: int) -> settings:
    return settings(
        max_examples=max_examples,
        stateful_step_count=60,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )


class TestSimulation(Simulation.TestCase):
    settings = cases(120)


@pytest.mark.slow
class TestLongSimulation(Simulation.TestCase):
    settings = cases(600)
