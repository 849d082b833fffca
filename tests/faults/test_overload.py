"""Ten times as many requests at once as the workers take: who is let in is served, the others are told when to come."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from baton_serve.baton.torture.clients.client import Manner, ask_once, make_client
from baton_serve.baton.torture.records import Attempt, Question
from baton_serve.baton.torture.shape import Shape
from baton_serve.baton.torture.verdict.settle import settle
from baton_serve.baton.torture.verdict.validate import Verdict, error_shape, judge
from tests.kits.whole.faults import LONG, Baton, running

if TYPE_CHECKING:
    import httpx

    from tests.conftest import Tell

pytestmark = [pytest.mark.faults, pytest.mark.timeout(400)]

NUM_SEQS = 4
#: The default queue takes longer to serve than this test lasts.
NUM_QUEUED = 16
SHAPE = Shape(
    prefill=1,
    decode=1,
    routers=1,
    worker_flags={"num-blocks": 512, "max-num-seqs": NUM_SEQS},
    router_flags={"max-queue-length": NUM_QUEUED},
)
#: Ten times the sequences of both workers.
NUM_CLIENTS = 10 * 2 * NUM_SEQS
SECONDS = 60.0 if LONG else 15.0
#: A client that was refused asks again so soon, whatever it was told.
AGAIN_S = 0.25
SAMPLE_S = 0.25
#: What the router may grow by: connections, bodies and answers of everybody at once, and what its allocator keeps.
MAX_GROWTH_BYTES = 16 * 2**20


def rss_bytes(pid: int) -> int:
    fields = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in fields if line.startswith("VmRSS:"))


class Crowd:
    """Clients that do not do as they are told: they come back at once."""

    def __init__(self, baton: Baton) -> None:
        self._baton = baton
        self._url = baton.cluster.processes["router-0"].url
        self.attempts: list[Attempt] = []
        #: ``Retry-After`` of everything that was answered 429.
        self.told_to_wait: list[str | None] = []

    async def ask_for(self, seconds: float, num_clients: int) -> None:
        async with make_client() as http:
            http.event_hooks["response"].append(self._note)
            end_s = time.monotonic() + seconds
            await asyncio.gather(*(self._client(http, number, end_s) for number in range(num_clients)))

    async def _note(self, response: httpx.Response) -> None:
        if response.status_code == 429:
            self.told_to_wait.append(response.headers.get("retry-after"))

    async def _client(self, http: httpx.AsyncClient, number: int, end_s: float) -> None:
        while time.monotonic() < end_s:
            question: Question = self._baton.questions[number % len(self._baton.questions)]
            number += 1
            stream = question.may_stream and number % 3 > 0
            attempt = Attempt(question.number, "router-0", True, time.monotonic())
            self.attempts.append(attempt)
            await ask_once(http, self._url, question, Manner(stream=stream), attempt)
            if attempt.status == 429:
                await asyncio.sleep(AGAIN_S)


async def watch_rss(pid: int, seen: list[int]) -> None:
    while True:
        seen.append(rss_bytes(pid))
        await asyncio.sleep(SAMPLE_S)


async def test_ten_times_too_much(tmp_path: Path, tell: Tell) -> None:
    async with running(tmp_path, SHAPE) as baton:
        pid = baton.cluster.processes["router-0"].pid
        await Crowd(baton).ask_for(1.0, NUM_SEQS)
        before, seen = rss_bytes(pid), list[int]()
        watching = asyncio.create_task(watch_rss(pid, seen))
        crowd = Crowd(baton)
        await crowd.ask_for(SECONDS, NUM_CLIENTS)
        watching.cancel()
        assert await settle(baton.cluster) == {}

    refused = [attempt for attempt in crowd.attempts if attempt.status == 429]
    admitted = [attempt for attempt in crowd.attempts if attempt.status != 429]
    verdicts = [judge(attempt, baton.answers[attempt.question], ()) for attempt in admitted]
    growth = max(seen) - before
    longest_s = max(attempt.ended_s - attempt.began_s for attempt in admitted)
    tell(
        f"overload for {SECONDS:g} s: {len(crowd.attempts)} asked, {len(admitted)} admitted, {len(refused)} "
        f"refused; the longest took {longest_s:.1f} s; the router's RSS {before >> 20} MiB, at most "
        f"{growth / 2**20:.1f} MiB more; {Counter(one.verdict.value for one in verdicts)}"
    )
    assert not [one.why for one in verdicts if one.verdict is not Verdict.EXACT]
    assert refused and not [attempt.error for attempt in refused if error_shape(attempt.error)]
    assert len(crowd.told_to_wait) == len(refused)
    assert all(value is not None and int(value) >= 1 for value in crowd.told_to_wait)
    assert growth <= MAX_GROWTH_BYTES
