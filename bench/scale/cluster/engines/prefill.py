"""A simulated P: it computes prompts one after the other, and keeps their blocks until they have been read."""

from __future__ import annotations

from collections import deque

from baton_serve.core.protocol.worker import Role, WorkerLoad
from baton_serve.router.placement.chunks import NUM_BYTES
from baton_serve.router.placement.prompt import BYTES_PER_TOKEN
from bench.scale.cluster.engines.machine import Machine
from bench.scale.cluster.kept import KeptBlocks, blocks_of
from bench.scale.cluster.request import Asker, Request


class PrefillEngine(Machine):
    """A P. Prompts are computed in order, since several at once share the same time."""

    role = Role.PREFILL

    def start(self) -> None:
        """See ``Machine``."""
        super().start()
        self._waiting: deque[tuple[Request, int, Asker]] = deque()
        self._computing: tuple[Request, int, Asker] | None = None
        self._blocks_computing = 0
        self.kept = KeptBlocks(self.engine_id, self._next)

    def load(self) -> WorkerLoad:
        """See ``Machine``."""
        return WorkerLoad(
            running=int(self._computing is not None),
            waiting=len(self._waiting),
            free_blocks=max(0, self.size.num_blocks - self.kept.num_blocks - self._blocks_computing),
            leased_blocks=self.kept.num_blocks,
            leases=len(self.kept.leased),
        )

    def submit(self, request: Request, asker: Asker) -> None:
        """Take a prompt; ``asker`` is told when it is computed."""
        self._waiting.append((request, request.leg, asker))
        self._next()

    def die(self) -> list[tuple[Request, int, Asker]]:
        """End the engine; returns what it was asked for and has not answered."""
        self.is_alive = False
        lost = [*([self._computing] if self._computing else ()), *self._waiting]
        self._waiting.clear()
        self._computing = None
        self.kept.lose()
        self._blocks_computing = 0
        return lost

    def _next(self) -> None:
        while self._computing is None and self._waiting:
            request, leg, _ = self._waiting[0]
            if request.leg != leg:  # the request has ended meanwhile
                self._waiting.popleft()
                continue
            num_blocks = blocks_of(request.num_tokens)
            num_kept = self.kept.num_blocks
            if num_kept and num_kept + num_blocks > self.size.num_blocks:
                return
            self._computing = self._waiting.popleft()
            self._blocks_computing = num_blocks
            found = NUM_BYTES[self.cache.take(request.prompt.chunks)] // BYTES_PER_TOKEN
            request.computed = request.num_tokens - min(found, request.num_tokens - 1)
            seconds = self.costs.prefill_s(request.computed) / self.size.speed
            self.loop.call_later(seconds, self._done, self.number)

    def _done(self, number: int) -> None:
        if number != self.number or self._computing is None:
            return
        request, leg, asker = self._computing
        self._computing = None
        self._blocks_computing = 0
        if request.leg == leg:
            asker.prefilled(request, self.kept)
        self._next()
