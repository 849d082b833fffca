"""A process that tries forms, and says when it starts and ends."""

from __future__ import annotations

import asyncio

from baton_serve.core.process.socket_child import Streams
from baton_serve.core.protocol.steps import Vocabulary
from baton_serve.workers.grammar.trial.messages import Limits
from baton_serve.workers.grammar.trial.process import TrialProcess


class WatchedTrial(TrialProcess):
    """``started`` is set when a process runs; a task that waits for that goes on after the first form has been sent.
    ``ended`` is set when the process is gone.
    """

    def __init__(self, vocab_size: int, limits: Limits) -> None:
        super().__init__(vocab_size, limits)
        self.started = asyncio.Event()
        self.ended = asyncio.Event()

    async def _start(self, vocabulary: Vocabulary) -> Streams:
        streams = await super()._start(vocabulary)
        self.started.set()
        return streams

    async def _end(self) -> None:
        await super()._end()
        self.ended.set()
