"""A simulated D: it reads blocks, then decodes all its sequences together, a step for one token of each.

Nothing happens at a token. All sequences get one token in each step, so one number, the steps so far, tells how far
each of them is; its speed changes when a sequence comes or leaves.
"""

from __future__ import annotations

import heapq
from collections import deque

from baton_serve.core.protocol.worker import Role, WorkerLoad
from baton_serve.router.placement.chunks import NUM_BYTES
from baton_serve.router.placement.prompt import BYTES_PER_TOKEN
from bench.scale.cluster.engines.machine import Machine
from bench.scale.cluster.kept import blocks_of
from bench.scale.cluster.request import Asker, Request

#: Steps may be this far apart and still be one: sums of times are not exact.
_SLACK_STEPS = 1e-6


class DecodeEngine(Machine):
    """A D. A request waits inside of it while its sequences or its blocks are taken."""

    role = Role.DECODE

    def start(self) -> None:
        """See ``Machine``."""
        super().start()
        self._waiting: deque[tuple[Request, int, Asker]] = deque()
        self._reading: dict[int, tuple[Request, int, Asker]] = {}
        self._running: list[tuple[float, int, Request, Asker]] = []
        self._blocks: dict[int, int] = {}
        self.num_used = 0
        self._steps = 0.0
        self._steps_at_s = self.loop.now_s
        self._version = 0

    def load(self) -> WorkerLoad:
        """See ``Machine``."""
        return WorkerLoad(
            running=len(self._running),
            waiting=len(self._waiting),
            reading=len(self._reading),
            free_blocks=self.size.num_blocks - self.num_used,
            pinned_blocks=self.num_used,
        )

    @property
    def num_running(self) -> int:
        """Sequences that are decoded now."""
        return len(self._running)

    def step_s(self) -> float:
        """The time of one step now."""
        return self.costs.decode_s(len(self._running)) / self.size.speed

    def submit(self, request: Request, asker: Asker) -> None:
        """Take a request whose blocks are on ``request.source``; ``asker`` is told of its first byte and its end."""
        self._waiting.append((request, request.leg, asker))
        self._admit()

    def die(self) -> list[tuple[Request, int, Asker]]:
        """End the engine; returns what it had, each with as many tokens as its client was sent."""
        self._advance()
        self.is_alive = False
        running = []
        for end, _, request, asker in self._running:
            request.num_sent = max(request.num_sent, request.job.num_new - max(1, int(end - self._steps + 1)))
            running.append((request, request.leg, asker))
        lost = [*running, *self._reading.values(), *self._waiting]
        self._waiting.clear()
        self._reading.clear()
        self._running.clear()
        self._blocks.clear()
        self.num_used = 0
        self._version += 1
        return lost

    def drop(self, asker: Asker) -> None:
        """End all that a router has asked for: its connections are gone."""
        self._advance()
        self._waiting = deque(one for one in self._waiting if one[2] is not asker)
        for request, _, whose in [*self._reading.values()]:
            if whose is asker:
                del self._reading[request.number]
                self._give_back(request)
        for _, _, request, whose in self._running:
            if whose is asker:
                self._give_back(request)
        self._running = [one for one in self._running if one[3] is not asker]
        heapq.heapify(self._running)
        self._schedule()
        self._admit()

    def _admit(self) -> None:
        while self._waiting:
            request, leg, asker = self._waiting[0]
            num_blocks = blocks_of(request.num_tokens + request.num_left)
            if request.leg == leg and self._is_too_much(num_blocks):
                return
            self._waiting.popleft()
            if request.leg != leg:  # the request has ended meanwhile
                continue
            self.num_used += num_blocks
            self._blocks[request.number] = num_blocks
            self._reading[request.number] = (request, leg, asker)
            found = NUM_BYTES[self.cache.take(request.prompt.chunks)] // BYTES_PER_TOKEN
            num_kept = request.num_tokens - 1  # P sampled the last token, and computed nothing of it
            missing = num_kept - min(found, num_kept)
            asker.reads(request, missing)
            self.loop.call_later(self.costs.read_s(missing), self._joins, self.number, request.number)

    def _is_too_much(self, num_blocks: int) -> bool:
        num_sequences = len(self._reading) + len(self._running)
        if num_sequences >= self.size.max_num_seqs:
            return True
        return num_sequences > 0 and self.num_used + num_blocks > self.size.num_blocks

    def _joins(self, number: int, request_number: int) -> None:
        if number != self.number:
            return
        found = self._reading.pop(request_number, None)
        if found is None:
            return
        request, leg, asker = found
        if request.leg != leg or not asker.has_read(request):
            self._give_back(request)
            self._admit()
            return
        self._advance()
        heapq.heappush(self._running, (self._steps + request.num_left, request.number, request, asker))
        self._schedule()
        self.loop.call_later(self.step_s(), asker.first_byte, request, leg)

    def _give_back(self, request: Request) -> None:
        self.num_used -= self._blocks.pop(request.number)

    def _advance(self) -> None:
        """Count the steps since the last change."""
        if self._running:
            self._steps += (self.loop.now_s - self._steps_at_s) / self.step_s()
        self._steps_at_s = self.loop.now_s

    def _schedule(self) -> None:
        self._version += 1
        if self._running:
            seconds = max(0.0, self._running[0][0] - self._steps) * self.step_s()
            self.loop.call_later(seconds, self._finish, self._version)

    def _finish(self, version: int) -> None:
        if version != self._version:
            return
        self._advance()
        ended = []
        while self._running and self._running[0][0] <= self._steps + _SLACK_STEPS:
            ended.append(heapq.heappop(self._running))
        self._schedule()
        for _, _, request, asker in ended:
            self._give_back(request)
            asker.finished(request)
        self._admit()
