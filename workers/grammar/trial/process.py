"""Keeps the processes that try forms: starts each for its first form, and again when it has ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from asyncio.subprocess import Process

from msgspec.structs import replace

from baton_serve.core.process.child_secrets import environ_for
from baton_serve.core.process.frames import encode, read
from baton_serve.core.process.parent_death import die_with_parent
from baton_serve.core.process.socket_child import Streams, start_with_socket
from baton_serve.core.protocol.openai.structured import Form
from baton_serve.core.protocol.steps import Vocabulary
from baton_serve.workers.grammar.trial.attempt import TOO_LONG
from baton_serve.workers.grammar.trial.fairness import FairLock, Places
from baton_serve.workers.grammar.trial.messages import TRIED, Begin, Limits, Tried, Try

#: What one form may take. Schemas of 64 KiB take some 0.3 s and 20 MB.
LIMITS = Limits(cpu_s=2.0, memory_bytes=128 << 20)
#: Seconds until a process that does not answer is killed. Only a machine that stands still needs them.
ANSWER_S = 30.0
#: Seconds of a processor after which a form is a slow one. Most schemas take a few milliseconds.
QUICK_S = 0.1
#: Slow forms that wait or are tried, see ``Places``. Each may take two seconds: the last of all is tried
#: before a router gives up the worker (``first_byte_timeout_s``, 30).
MAX_SLOW = 12


class TrialProcess:
    """The process, from the first form until ``close``. For one event loop."""

    def __init__(
        self, vocab_size: int, limits: Limits = LIMITS, *, answer_s: float = ANSWER_S, ends_if_left: bool = True
    ) -> None:
        """``vocab_size`` is the model's.

        ``ends_if_left``: a form whose request leaves takes the process with it. Otherwise the form is tried to its end,
        which with a short limit is sooner than a new process can start.
        """
        self._vocab_size = vocab_size
        self._limits = limits
        self._answer_s = answer_s
        self._ends_if_left = ends_if_left
        #: Held until the form that is being tried is done, also if its request has left.
        self._turn = FairLock()
        self._trying: asyncio.Task[Tried] | None = None
        self._process: Process | None = None
        self._streams: Streams | None = None
        #: The last process that was killed, until it is gone.
        self._dying: asyncio.Task[int] | None = None

    def __repr__(self) -> str:
        return f"<TrialProcess pid={self.pid}>"

    @property
    def pid(self) -> int | None:
        """The process id; None while no process runs."""
        return None if self._process is None else self._process.pid

    async def try_form(self, vocabulary: Vocabulary, form: Form, client: str = "") -> Tried:
        """Try a client's form, in turn with those of other clients. Raises OSError if no process can be started.

        If this is cancelled before the form's turn, the form is not tried. A process that does not answer is killed,
        and the next form has a new one.
        """
        await self._turn.acquire(client)
        task = self._trying = asyncio.create_task(self._try(vocabulary, form), name="try a form in its turn")
        task.add_done_callback(lambda _: self._turn.release())
        return await (task if self._ends_if_left else asyncio.shield(task))

    async def _try(self, vocabulary: Vocabulary, form: Form) -> Tried:
        try:
            async with asyncio.timeout(self._answer_s):
                reader, writer = self._streams or await self._start(vocabulary)
                writer.write(encode(Try(form.kind, form.text)))
                tried = await read(reader, TRIED)
        except TimeoutError:
            await self._end()
            return Tried("", f"it was not tried within {self._answer_s:g} s", is_final=False)
        except BaseException:
            await self._end()
            raise
        if tried is None:
            await self._end()
            return Tried("", "the process that tries it has ended", is_final=False)
        return tried

    async def close(self) -> None:
        """End the process, and what is being tried. Nothing may be tried any more."""
        if self._trying is not None:
            self._trying.cancel()
            await asyncio.wait([self._trying])
        await self._end()

    async def _start(self, vocabulary: Vocabulary) -> Streams:
        self._process, self._streams = await start_with_socket(
            "baton_serve.workers.grammar.trial.main",
            environ=environ_for("helper", os.environ),
            before_exec=die_with_parent(),
            new_session=True,  # Ctrl-C goes to the whole process group, and requests may still wait for their forms
        )
        self._streams[1].write(encode(Begin(vocabulary, self._vocab_size, self._limits)))
        return self._streams

    async def _end(self) -> None:
        process, streams = self._process, self._streams
        self._process = self._streams = None
        if streams is not None:
            streams[1].close()
        if process is not None:
            # Not ``kill()`` of asyncio: that polls first, and so may take the exit status away from the loop.
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)
            self._dying = asyncio.create_task(process.wait())
        if self._dying is not None:  # also where a cancellation has cut off who waited for it before
            await asyncio.shield(self._dying)


class Turns:
    """Two processes, so that no form waits for slow ones of others: one for all forms, for a moment each, and one that
    only slow forms start. For one event loop.
    """

    def __init__(
        self, vocab_size: int, limits: Limits = LIMITS, *, quick_s: float = QUICK_S, max_slow: int = MAX_SLOW
    ) -> None:
        """``vocab_size`` is the model's; ``limits``: what a slow form may take."""
        brief = replace(limits, cpu_s=min(quick_s, limits.cpu_s))
        self.quick = TrialProcess(vocab_size, brief, ends_if_left=False)
        self.slow = TrialProcess(vocab_size, limits)
        self._places = Places(max_slow)

    async def try_form(self, vocabulary: Vocabulary, form: Form, client: str = "") -> Tried:
        """Try a client's form. Raises RateLimitError for one slow form too many, and OSError if no process starts.

        If this is cancelled while the form is tried as a slow one, that ends.
        """
        tried = await self.quick.try_form(vocabulary, form, client)
        if tried.error != TOO_LONG:
            return tried
        self._places.take(client)
        try:
            return await self.slow.try_form(vocabulary, form, client)
        finally:
            self._places.give_back(client)

    async def close(self) -> None:
        """End both processes. Nothing may be tried any more."""
        await self.quick.close()
        await self.slow.close()
