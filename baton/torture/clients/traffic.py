"""Clients that ask one question after another, each in a manner of its own, through any router that is up."""

from __future__ import annotations

import asyncio
import random
import time
from typing import TYPE_CHECKING

from baton_serve.baton.torture.clients.client import Manner, ask_once, make_client
from baton_serve.baton.torture.records import Attempt, Ending
from baton_serve.core.process.task_end import end_task

if TYPE_CHECKING:
    from collections.abc import Sequence

    from baton_serve.baton.cluster.cluster import Cluster
    from baton_serve.baton.torture.records import Question

#: Pause of a client that finds no router, seconds.
NO_ROUTER_S = 0.05


def draw_manner(rng: random.Random, *, may_stream: bool = True) -> Manner:
    """How a client reads its next answer."""
    what = rng.random()
    stream = rng.random() < 0.8 and may_stream
    if what < 0.2:
        return Manner(stream, leaves_after=rng.randint(1, 60) if stream else rng.uniform(0.01, 1.5))
    if what < 0.3:
        return Manner(stream, slow_s=0.03)
    if what < 0.35:
        return Manner(stream, stalls_s=rng.uniform(0.5, 3.0))
    return Manner(stream)


class Traffic:
    """``async with Traffic(...) as traffic``: clients ask until ``finish``. ``attempts`` has all their requests and
    answers.
    """

    def __init__(self, cluster: Cluster, questions: Sequence[Question], seed: int, num_clients: int) -> None:
        self.attempts: list[Attempt] = []
        #: Attempts that a client made again because its connection had broken.
        self.num_again = 0
        self.num_ended = 0
        self._news = asyncio.Event()
        self._cluster = cluster
        self._questions = questions
        self._seed = seed
        self._num_clients = num_clients
        self._finishing = False

    async def __aenter__(self) -> Traffic:
        self._http = make_client()
        self._tasks = [asyncio.create_task(self._client(number)) for number in range(self._num_clients)]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            await end_task(task)
        await self._http.aclose()

    async def finish(self) -> None:
        """Begin no more requests, and wait until those that were begun have ended."""
        self._finishing = True
        await asyncio.gather(*self._tasks)

    async def ended(self, count: int) -> None:
        """Wait until ``count`` more attempts have ended."""
        wanted = self.num_ended + count
        while self.num_ended < wanted:
            self._news.clear()
            await self._news.wait()

    async def _client(self, number: int) -> None:
        rng, routers = random.Random(f"client {self._seed} {number}"), random.Random(f"routers {self._seed} {number}")
        while not self._finishing:
            question = rng.choice(self._questions)
            manner = draw_manner(rng, may_stream=question.may_stream)
            while not await self.ask(question, manner, routers):
                self.num_again += 1

    async def ask(self, question: Question, manner: Manner, rng: random.Random) -> bool:
        """Ask any router that is up, once. Returns False when the connection broke, so that the client asks again.

        When clients finish and no router is up any more, nothing is asked.
        """
        while not (routers := self._cluster.up("router")):
            if self._finishing:
                return True
            await asyncio.sleep(NO_ROUTER_S)
        name = rng.choice(routers)
        attempt = Attempt(question.number, name, manner.stream, time.monotonic())
        self.attempts.append(attempt)
        await ask_once(self._http, self._cluster.processes[name].url, question, manner, attempt)
        self.num_ended += 1
        self._news.set()
        return attempt.ending is not Ending.BROKEN
