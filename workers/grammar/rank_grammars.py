"""Which grammars the ranks have: each that a request follows, and the newest of those that none does."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

from baton_serve.core.protocol.steps import CompileGrammar, ForgetGrammar, GrammarCompiled, ToRank

#: Grammars that ranks keep, unless requests follow more. One takes kilobytes when it is compiled, and up to tens of MB
#: after a long life.
MAX_GRAMMARS = 64
#: Seconds that ranks have for a grammar that has been tried within two.
COMPILE_S = 10.0


class RankGrammarError(Exception):
    """A rank cannot compile the grammar. The message is the library's."""


@dataclass(slots=True)
class _Entry:
    """A grammar that ranks have or compile. ``silent``: the ranks that have not answered."""

    compile_id: int
    silent: set[int]
    num_held: int = 0
    done: asyncio.Future[str] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class HeldGrammar:
    """A grammar that the ranks have until ``release``."""

    def __init__(self, text: str, release: Callable[[], None]) -> None:
        self.text = text
        self._release: Callable[[], None] | None = release

    def release(self) -> None:
        """The request has ended, so no later step begins a sequence with the grammar. Idempotent."""
        release, self._release = self._release, None
        if release is not None:
            release()


class RankGrammars:
    """For one event loop. ``send`` sends a message to all ranks; ``on_compiled`` gets their answers.

    A request holds its grammar from before it is queued until its end. So a sequence that waits for long, or comes
    back after a preemption, finds it compiled: no step compiles.
    """

    def __init__(
        self,
        send: Callable[[ToRank], None],
        num_ranks: int,
        *,
        timeout_s: float = COMPILE_S,
        max_grammars: int = MAX_GRAMMARS,
    ) -> None:
        self._send = send
        self._num_ranks = num_ranks
        self._timeout_s = timeout_s
        self._max_grammars = max_grammars
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._by_id: dict[int, _Entry] = {}
        self._ids = count(1)

    def __repr__(self) -> str:
        held = sum(entry.num_held > 0 for entry in self._entries.values())
        return f"<RankGrammars {len(self._entries)} grammars, {held} held>"

    async def hold(self, grammar: str) -> HeldGrammar:
        """Have all ranks compile the grammar, or note that they have. Raises RankGrammarError, TimeoutError.

        A cancellation does not disturb others that wait for the same grammar.
        """
        entry = self._entries.get(grammar) or self._ask(grammar)
        self._entries.move_to_end(grammar)
        entry.num_held += 1
        self._make_room()
        try:
            async with asyncio.timeout(self._timeout_s):
                error = await asyncio.shield(entry.done)
            if error:
                raise RankGrammarError(error)
        except BaseException:
            self._release(grammar, entry)
            raise
        return HeldGrammar(grammar, lambda: self._release(grammar, entry))

    def on_compiled(self, rank: int, message: GrammarCompiled) -> None:
        """Take a rank's answer. The error of any rank is the error of all."""
        entry = self._by_id.get(message.compile_id)
        if entry is None or entry.done.done():
            return
        entry.silent.discard(rank)
        if message.error or not entry.silent:
            entry.done.set_result(message.error)

    def _ask(self, grammar: str) -> _Entry:
        entry = _Entry(next(self._ids), set(range(self._num_ranks)))
        self._entries[grammar] = self._by_id[entry.compile_id] = entry
        self._send(CompileGrammar(entry.compile_id, grammar))
        return entry

    def _release(self, grammar: str, entry: _Entry) -> None:
        entry.num_held -= 1
        if entry.done.done() and entry.done.result() and not entry.num_held:
            self._forget(grammar)
        self._make_room()

    def _make_room(self) -> None:
        while len(self._entries) > self._max_grammars and (oldest := self._oldest_that_none_holds()) is not None:
            self._forget(oldest)

    def _oldest_that_none_holds(self) -> str | None:
        # What a rank is still compiling is not forgotten: the rank would forget it first, and then keep it for ever.
        return next(
            (grammar for grammar, entry in self._entries.items() if entry.done.done() and not entry.num_held), None
        )

    def _forget(self, grammar: str) -> None:
        entry = self._entries.pop(grammar)
        del self._by_id[entry.compile_id]
        self._send(ForgetGrammar(entry.compile_id))
