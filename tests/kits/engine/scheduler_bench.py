"""A scheduler with a rank, moved event by event."""

from __future__ import annotations

from typing import Any

from baton_serve.core.protocol.steps import Step
from baton_serve.workers.engine.api import EngineError, HandOff, TokenOutput
from baton_serve.workers.engine.scheduling.scheduler import Command, Scheduler
from baton_serve.workers.engine.scheduling.step_outcome import Output
from tests.kits.engine.fake_rank import FakeRank
from tests.kits.engine.requests import VOCAB, config, params_of, remote_request, request


class Bench:
    """A scheduler, a rank, and what each request got."""

    def __init__(self, **changes: Any) -> None:
        lease_ids = iter(f"lease-{number}" for number in range(100))
        #: Engines that cannot be read from.
        self.lost: set[str] = set()
        self.scheduler = Scheduler(
            config(**changes), 0, lambda: next(lease_ids), lambda engine_id: engine_id not in self.lost
        )
        self.rank = FakeRank(self.scheduler.pool, VOCAB)
        self.outputs: dict[int, list[TokenOutput | EngineError]] = {}

    def add(self, *args: Any, **fields: Any) -> int:
        seq_id = self.scheduler.add(request(*args, **fields))
        self.outputs[seq_id] = []
        return seq_id

    def add_remote(self, *args: Any, **fields: Any) -> int:
        seq_id = self.scheduler.add(remote_request(*args, **fields))
        self.outputs[seq_id] = []
        self.scheduler.connected(seq_id)
        return seq_id

    def pump(self) -> list[Command]:
        commands = self.scheduler.schedule()
        for command in commands:
            self.rank.receive(command)
        self.scheduler.state.check()
        return commands

    def go_ahead(self) -> list[Step]:
        """Plan, and send a step ahead if there can be one; returns all steps that were sent."""
        commands = self.pump()
        ahead = self.scheduler.schedule_ahead()
        for command in ahead:
            self.rank.receive(command)
        self.scheduler.state.check()
        return [command for command in commands + ahead if isinstance(command, Step)]

    def step(self) -> Step | None:
        """Plan a step and let it end."""
        commands = self.pump()
        step = next((command for command in commands if isinstance(command, Step)), None)
        if step is not None:
            self.finish()
        return step

    def finish(self) -> None:
        for seq_id, item in self.scheduler.apply_step(self.rank.finish_step()):
            self.outputs[seq_id].append(item)
        self.scheduler.state.check()

    def hand_off(self, name: str, prompt: list[int], adapter: str = "") -> HandOff:
        seq_id = self.add(name, prompt, 1, hand_off=True, adapter=adapter)
        self.run()
        (output,) = self.outputs[seq_id]
        assert isinstance(output, TokenOutput) and output.hand_off is not None
        return output.hand_off

    def add_own(
        self, name: str, prompt: list[int], hand_off: HandOff, max_tokens: int = 4, adapter: str = "", **changes: Any
    ) -> int:
        remote = params_of(hand_off, prompt, "us", **{"adapter": adapter, **changes})
        return self.add(name, prompt, max_tokens, remote=remote, adapter=adapter)

    def read(self, prompt: list[int], outcome: str = "done", stale: list[int] | None = None) -> None:
        (read_id,) = self.rank.reads
        self.deliver(self.scheduler.apply_read(self.rank.finish_read(read_id, outcome, prompt, stale)))

    def deliver(self, failure: Output | None) -> None:
        if failure is not None:
            self.outputs[failure[0]].append(failure[1])
        self.scheduler.state.check()

    def run(self) -> None:
        """Until no step is under way, and none is sent."""
        while self.pump() or self.rank.step is not None:
            self.finish()

    def tokens(self, seq_id: int) -> list[int]:
        return [item.token for item in self.outputs[seq_id] if isinstance(item, TokenOutput)]


def rows(step: Step | None) -> list[tuple[int, int, int, bool]]:
    assert step is not None
    return [(row.seq, row.start, row.num_tokens, row.sample) for row in step.rows]
