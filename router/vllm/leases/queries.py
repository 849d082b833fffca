"""The questions to side channels, and who waits for their answers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from baton_serve.router.vllm.leases.agent.messages import Queried, Query
from baton_serve.router.vllm.leases.side_channel_facts import SideChannelError, SideChannelReason

if TYPE_CHECKING:
    from collections.abc import Callable

    from baton_serve.router.vllm.leases.side_channel_facts import SideChannelFacts

#: Longest wait for an answer, seconds: for the process to start, also a second time, and for the side channel.
TIMEOUT_S = 30.0


class Queries:
    """Sends each question once the process runs, and again if the process dies over it."""

    def __init__(self, send: Callable[[Query], None]) -> None:
        self._send = send
        self._waiting: dict[int, tuple[Query, asyncio.Future[SideChannelFacts]]] = {}
        self._num_queries = 0
        self._is_running = False
        #: Why nothing can be asked, now and later; empty when it can.
        self._hindrance = ""

    @property
    def is_able(self) -> bool:
        """Whether the process runs and can ask."""
        return self._is_running and not self._hindrance

    async def ask(self, host: str, port: int, handshake_port: int = 0) -> SideChannelFacts:
        """Wait for the answer. Raises SideChannelError."""
        if self._hindrance:
            raise _cannot_ask(self._hindrance)
        self._num_queries += 1
        query = Query(self._num_queries, host, port, handshake_port)
        answer: asyncio.Future[SideChannelFacts] = asyncio.get_running_loop().create_future()
        self._waiting[query.number] = query, answer
        if self._is_running:
            self._send(query)
        try:
            async with asyncio.timeout(TIMEOUT_S):
                return await answer
        except TimeoutError:
            raise _cannot_ask("the process that asks does not run, see the lines before this one") from None
        finally:
            del self._waiting[query.number]

    def started(self, hindrance: str) -> None:
        """Note that the process runs, and ask what is waiting. ``hindrance``: why it can ask nothing; empty if none."""
        self._is_running = True
        if hindrance:
            self._give_up(hindrance)
        for query, _ in self._waiting.values():
            self._send(query)

    def ended(self) -> None:
        """Note that the process has ended; another one will start."""
        self._is_running = False

    def answered(self, event: Queried) -> None:
        """Pass on an answer. It is dropped if nobody waits for it any more."""
        _, answer = self._waiting.get(event.number, (None, None))
        if answer is None or answer.done():
            return
        if event.facts is not None:
            answer.set_result(event.facts)
        else:
            answer.set_exception(SideChannelError(event.reason or SideChannelReason.CANNOT_ASK, event.error))

    def close(self) -> None:
        """Have every question fail, now and later."""
        self._give_up("this router is stopping")

    def _give_up(self, hindrance: str) -> None:
        self._hindrance = hindrance
        for _, answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(_cannot_ask(hindrance))


def _cannot_ask(why: str) -> SideChannelError:
    return SideChannelError(SideChannelReason.CANNOT_ASK, f"side channels of vLLM workers cannot be asked: {why}")
