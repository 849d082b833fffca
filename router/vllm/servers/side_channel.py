"""The side channel of one vLLM server, which says which engine it is and with which others it can be paired."""

from __future__ import annotations

import asyncio
import contextlib
from typing import NamedTuple

from baton_serve.core.process.task_end import end_task
from baton_serve.router.vllm.leases.remote_engine import RemoteEngine
from baton_serve.router.vllm.leases.side_channel_facts import SideChannelError, SideChannelFacts, SideChannelReason
from baton_serve.router.vllm.leases.vllm_leases import VllmLeases

#: Seconds until a side channel that did not answer is asked again; doubled up to the maximum.
FIRST_PAUSE_S = 1.0
MAX_PAUSE_S = 30.0


class Answered(NamedTuple):
    """What the side channel said, or a sentence for people about why it did not."""

    facts: SideChannelFacts | None
    problem: str = ""
    #: In another version's format.
    other_format: bool = False


class SideChannel:
    """Asks one side channel, and again as long as it does not answer. ``close`` it at the end."""

    def __init__(self, leases: VllmLeases, place: tuple[str, int], handshake_port: int = 0) -> None:
        self._leases = leases
        self._place = place
        #: Where the server answers over HTTP, for routers with the token; 0: its side channel is asked.
        self._handshake_port = handshake_port
        self._again: asyncio.Task[Answered] | None = None
        self._again_at_s: float | None = None
        self._pause_s = FIRST_PAUSE_S

    async def ask(self) -> Answered:
        """Ask now, and wait for the answer: seconds, if the server does not answer."""
        await self.close()
        self._pause_s = FIRST_PAUSE_S
        return await self._ask()

    def answer_since(self) -> Answered | None:
        """The answer to a question that was asked again, once it has come. Never waits."""
        now_s = asyncio.get_running_loop().time()
        if self._again is not None and self._again.done():
            again, self._again = self._again, None
            return again.result()
        if self._again is None and self._again_at_s is not None and now_s >= self._again_at_s:
            self._again = asyncio.create_task(self._ask())
        return None

    def meet(self, engine_id: str) -> None:
        """Prepare for leases on this engine, which has answered."""
        host, port = self._place
        with contextlib.suppress(ValueError):  # no hand-off can name such an engine
            where = RemoteEngine(engine_id=engine_id, host=host, port=port, handshake_port=self._handshake_port)
            self._leases.meet(where)

    async def close(self) -> None:
        """Stop asking."""
        if self._again is not None:
            await end_task(self._again)
            self._again = None

    async def _ask(self) -> Answered:
        try:
            facts = await self._leases.query(*self._place, self._handshake_port)
        except SideChannelError as error:
            self._again_at_s = asyncio.get_running_loop().time() + self._pause_s
            self._pause_s = min(2 * self._pause_s, MAX_PAUSE_S)
            return Answered(
                None, _sentence(error, self._handshake_port), error.reason is SideChannelReason.OTHER_VERSION
            )
        self._again_at_s = None
        return Answered(facts)


def _sentence(error: SideChannelError, handshake_port: int) -> str:
    if handshake_port:
        return f"It does not say with whom it can be paired: {error}."
    said = f"Its side channel does not say with whom it can be paired: {error}."
    if error.reason is SideChannelReason.CANNOT_ASK:
        return said
    return f"{said} If it is elsewhere, say so after the address: ?side_channel=PORT. If it is closed: ?handshake=PORT."
