"""All ranks of one engine: they start together, get the same messages, and end together. No torch here.

When a rank dies, the others would wait for it inside their forward pass forever, so they are killed at once.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from baton_serve.core.process.frames import encode
from baton_serve.core.protocol.handshake import RankMetadata
from baton_serve.core.protocol.steps import FromRank, Progress, RankReady, ToRank
from baton_serve.workers.rank_group.first_failure import FirstFailure
from baton_serve.workers.rank_group.launch import run_to_completion
from baton_serve.workers.rank_group.link import OnDeath, RankLink
from baton_serve.workers.rank_protocol.errors import RankDeadError, RankStartError
from baton_serve.workers.rank_protocol.spec import RankSpec

#: The rank and its message.
OnRankEvent = Callable[[int, FromRank], None]


class RankGroup:
    """The running ranks. Methods are called on the loop that started the group, and callbacks run there too.

    ``on_event`` gets the messages of every rank, in the order in which that rank sent them; ``Progress`` only from
    rank 0. ``on_death`` is called at most once, when a rank ends after all were ready and without ``stop``. By then
    the other ranks have been killed, and no callback follows.
    """

    def __init__(self, spec: RankSpec, on_event: OnRankEvent, on_death: OnDeath) -> None:
        self._spec = spec
        self._on_event = on_event
        self._on_death = on_death
        self._links: dict[int, RankLink] = {}
        self._is_ready = False
        self._end = FirstFailure(spec.num_ranks, self._fail)
        #: The reason why a rank could not start.
        self._failure: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()

    @classmethod
    async def start(
        cls,
        spec: RankSpec,
        on_event: OnRankEvent,
        on_death: OnDeath = lambda error: None,
        *,
        environ: dict[str, str] | None = None,
    ) -> RankGroup:
        """Start ``spec.num_ranks`` processes, which differ in ``spec.rank``, and wait until all are ready.

        There is no timeout: use ``asyncio.timeout``. Raises RankStartError with the message of the first rank that
        failed. If this raises or is cancelled, no process is left.
        """
        group = cls(spec, on_event, on_death)
        with _rendezvous(spec.num_ranks) as rendezvous:
            specs = [replace(spec, rank=rank, rendezvous=rendezvous) for rank in range(spec.num_ranks)]
            await group._start_all(specs, environ)
        return group

    def __repr__(self) -> str:
        state = "ended" if self._end.is_over else "ready" if self._is_ready else "starting"
        return f"<RankGroup {state} {[self._links[rank] for rank in sorted(self._links)]}>"

    @property
    def num_ranks(self) -> int:
        return self._spec.num_ranks

    @property
    def pids(self) -> list[int]:
        return [self._links[rank].pid for rank in range(self.num_ranks)]

    @property
    def readies(self) -> list[RankReady]:
        """The ``RankReady`` of each rank; they agree about the engine."""
        return [self._links[rank].ready for rank in range(self.num_ranks)]

    @property
    def metadata(self) -> list[RankMetadata]:
        """What other engines need to read each rank."""
        return [ready.metadata for ready in self.readies]

    def send(self, message: ToRank) -> None:
        """Queue a message for every rank; never blocks. After the death of a rank, messages are lost."""
        frame = encode(message)
        for link in self._links.values():
            link.send_frame(frame)

    async def stop(self) -> None:
        """Let the ranks finish their queued steps and exit; after a while they are killed. Idempotent."""
        self._end.close()
        await asyncio.gather(*(self._stop(link) for link in self._links.values()))

    def kill(self) -> None:
        """Kill the ranks now, without ``on_death``. ``stop`` must still be awaited."""
        self._end.close()
        self._kill_all_but(None)

    async def _stop(self, link: RankLink) -> None:
        await link.stop()
        if link.exit_status != 0:
            self._kill_all_but(link)

    async def _start_all(self, specs: list[RankSpec], environ: dict[str, str] | None) -> None:
        starts = [asyncio.create_task(self._start_one(spec, environ), name=f"start rank {spec.rank}") for spec in specs]
        try:
            ends = _all(starts)
            either: list[asyncio.Future[Any]] = [ends, self._failure]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if self._failure.done() or any(error is not None for error in ends.result()):
                # All starts may have ended before the reason is known: ``FirstFailure`` holds back consequences.
                raise await self._failure
            self._check_agreement()
            self._is_ready = True
        except BaseException:
            await run_to_completion(self._undo(starts))
            raise

    async def _start_one(self, spec: RankSpec, environ: dict[str, str] | None) -> None:
        rank, name = spec.rank, f"rank {spec.rank}" if self.num_ranks > 1 else "the rank process"
        try:
            self._links[rank] = await RankLink.start(
                spec,
                lambda event: self._handle(rank, event),
                lambda error: self._end.handle(rank, error),
                environ=environ,
                name=name,
            )
        except Exception as error:
            self._end.handle(rank, error)
            raise

    async def _undo(self, starts: list[asyncio.Task[None]]) -> None:
        for start in starts:
            start.cancel()
        await _all(starts)
        self._kill_all_but(None)
        await self.stop()

    def _check_agreement(self) -> None:
        """Raise RankStartError if the ranks have loaded different models or have caches of different sizes."""
        first, *others = [
            (ready.num_blocks, ready.max_model_len, ready.vocab_size, ready.compatibility.hash, ready.adapters)
            for ready in self.readies
        ]
        for rank, other in enumerate(others, 1):
            if other != first:
                raise RankStartError(f"rank {rank} has loaded something else than rank 0: {other} is not {first}")

    def _handle(self, rank: int, event: FromRank) -> None:
        if self._end.is_over:
            return
        if isinstance(event, Progress) and self.num_ranks > 1:
            if rank > 0:
                return
            event = replace(event, text=f"rank 0 of {self.num_ranks}: {event.text}")
        self._on_event(rank, event)

    def _fail(self, rank: int, error: Exception) -> None:
        self._kill_all_but(self._links.get(rank))
        if not isinstance(error, RankDeadError):
            self._failure.set_result(error)
        elif self._is_ready:
            self._on_death(error)
        else:
            self._failure.set_result(RankStartError(f"{error} while others were loading"))

    def _kill_all_but(self, spared: RankLink | None) -> None:
        for link in self._links.values():
            if link is not spared:
                link.kill()


@contextmanager
def _rendezvous(num_ranks: int) -> Iterator[str]:
    """The path of a file by which the ranks find each other without a port; other users cannot open its folder."""
    if num_ranks == 1:
        yield ""
        return
    with tempfile.TemporaryDirectory(prefix="baton-ranks-") as folder:
        yield str(Path(folder, "rendezvous"))


def _all(tasks: list[asyncio.Task[None]]) -> asyncio.Future[list[BaseException | None]]:
    """A future that is done when all tasks are done; its result has None or the exception of each task."""
    return asyncio.gather(*tasks, return_exceptions=True)
