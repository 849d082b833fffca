"""A simulated P: it computes prompts one after the other, and keeps their blocks until they have been read."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from baton_serve.core.protocol.worker import Role, WorkerLoad
from baton_serve.router.placement.chunks import NUM_BYTES
from baton_serve.router.placement.prompt import BYTES_PER_TOKEN
from bench.scale.cluster.engines.machine import Machine, blocks_of

if TYPE_CHECKING:
    from bench.scale.cluster.engines.ports import Asker
    from bench.scale.cluster.request import Request


class PrefillEngine(Machine):
    """A P. Prompts are computed in order, since several at once share the same time."""

    role = Role.PREFILL

    def start(self) -> None:
        """See ``Machine``."""
        super().start()
        self._waiting: deque[tuple[Request, int, Asker]] = deque()
        self._computing: tuple[Request, int, Asker] | None = None
        self._blocks_computing = 0
        #: Blocks under each lease.
        self.leased: dict[str, int] = {}
        self.num_leased = 0

    def load(self) -> WorkerLoad:
        """See ``Machine``."""
        return WorkerLoad(
            running=int(self._computing is not None),
            waiting=len(self._waiting),
            free_blocks=max(0, self.size.num_blocks - self.num_leased - self._blocks_computing),
            leased_blocks=self.num_leased,
            leases=len(self.leased),
        )

    def submit(self, request: Request, asker: Asker) -> None:
        """Take a prompt; ``asker`` is told when it is computed."""
        self._waiting.append((request, request.leg, asker))
        self._next()

    def keep(self, lease_id: str, num_tokens: int) -> None:
        """Keep the blocks of a prompt that was just computed."""
        self.leased[lease_id] = num_blocks = blocks_of(num_tokens)
        self.num_leased += num_blocks

    def free(self, lease_id: str) -> None:
        """End a lease. Does nothing if it has ended."""
        self.num_leased -= self.leased.pop(lease_id, 0)
        self._next()

    def die(self) -> list[tuple[Request, int, Asker]]:
        """End the engine; returns what it was asked for and has not answered."""
        self.is_alive = False
        lost = [*([self._computing] if self._computing else ()), *self._waiting]
        self._waiting.clear()
        self._computing = None
        self.leased.clear()
        self.num_leased = self._blocks_computing = 0
        return lost

    def _next(self) -> None:
        while self._computing is None and self._waiting:
            request, leg, _ = self._waiting[0]
            if request.leg != leg:  # the request has ended meanwhile
                self._waiting.popleft()
                continue
            num_blocks = blocks_of(request.num_tokens)
            if self.num_leased and self.num_leased + num_blocks > self.size.num_blocks:
                return
            self._computing = self._waiting.popleft()
            self._blocks_computing = num_blocks
            found = NUM_BYTES[self.cache.take(request.prompt.chunks)] // BYTES_PER_TOKEN
            request.computed = request.num_tokens - min(found, request.num_tokens - 1)
            seconds = self.costs.prefill_s(request.computed) / self.size.speed
            self.loop.after(seconds, self._done, self.number)

    def _done(self, number: int) -> None:
        if number != self.number or self._computing is None:
            return
        request, leg, asker = self._computing
        self._computing = None
        self._blocks_computing = 0
        if request.leg == leg:
            asker.prefilled(request, self)
        self._next()
