"""Has the ranks compile the grammars of requests, once per form, and tells clients what is wrong with theirs."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING

from core.protocol.errors import BadRequestError
from core.protocol.steps import CompileGrammar, Vocabulary
from workers.grammar.notation import NotationError, grammar_of, in_one_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from core.protocol.openai.structured import Form
    from core.protocol.steps import GrammarCompiled, ToRank

#: Forms, and bytes of their text and grammars, that are kept.
MAX_FORMS = 256
MAX_BYTES = 8 << 20
#: Seconds until a form counts as too complex: a thousand times what usual ones take.
COMPILE_S = 10.0


@dataclass(frozen=True, slots=True)
class Compiled:
    """What came of a form: a grammar that all ranks have compiled, or what is wrong with the form."""

    grammar: str
    error: str = ""


@dataclass(slots=True)
class _Pending:
    """A compilation that not every rank has answered."""

    silent: set[int]
    done: asyncio.Future[str] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class GrammarCompiler:
    """For one event loop. ``send`` sends a message to all ranks; ``on_compiled`` gets their answers."""

    def __init__(
        self,
        send: Callable[[ToRank], None],
        num_ranks: int,
        tokenizer: Callable[[], str],
        eos_token_ids: frozenset[int],
        *,
        timeout_s: float = COMPILE_S,
        max_forms: int = MAX_FORMS,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        """``tokenizer`` returns the text of ``tokenizer.json``; called once, in a thread, before the first grammar."""
        self._send = send
        self._num_ranks = num_ranks
        self._tokenizer = tokenizer
        self._eos_token_ids = eos_token_ids
        self._timeout_s = timeout_s
        self._max_forms = max_forms
        self._max_bytes = max_bytes
        self._known: OrderedDict[Form, Compiled] = OrderedDict()
        self._num_bytes = 0
        self._running: dict[Form, asyncio.Task[Compiled]] = {}
        self._pending: dict[int, _Pending] = {}
        self._ids = count(1)
        self._vocabulary: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<GrammarCompiler {len(self._known)} forms, {self._num_bytes} bytes, {len(self._running)} running>"

    async def compile(self, form: Form) -> str:
        """The form's grammar, once all ranks have compiled it. Raises BadRequestError that says what is wrong.

        Requests with equal forms share one compilation; cancelling one of them does not disturb the others.
        """
        compiled = self._known.get(form)
        if compiled is None:
            task = self._running.get(form)
            if task is None:
                task = self._running[form] = asyncio.create_task(self._compile(form), name="compile a grammar")
            compiled = await asyncio.shield(task)
        else:
            self._known.move_to_end(form)
        if compiled.error:
            raise BadRequestError(
                f"'{form.param}' cannot be followed: {compiled.error}", param=form.param, code="invalid_value"
            )
        return compiled.grammar

    def on_compiled(self, rank: int, message: GrammarCompiled) -> None:
        """Take a rank's answer. The error of any rank is the error of all. Late answers are ignored."""
        pending = self._pending.get(message.compile_id)
        if pending is None or pending.done.done():
            return
        pending.silent.discard(rank)
        if message.error or not pending.silent:
            pending.done.set_result(message.error)

    async def close(self) -> None:
        """End what is being compiled."""
        tasks = [*self._running.values(), *([] if self._vocabulary is None else [self._vocabulary])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _compile(self, form: Form) -> Compiled:
        try:
            compiled = await self._on_ranks(await asyncio.to_thread(grammar_of, form))
        except NotationError as error:
            compiled = Compiled("", str(error))
        except TimeoutError:
            # Not kept, as the ranks may only have been busy.
            return Compiled("", f"it was not compiled within {self._timeout_s:g} s")
        finally:
            del self._running[form]
        self._keep(form, compiled)
        return compiled

    async def _on_ranks(self, grammar: str) -> Compiled:
        if not self._eos_token_ids:
            return Compiled("", "this model has no token that ends an answer")
        if self._vocabulary is None:
            self._vocabulary = asyncio.create_task(self._send_vocabulary(), name="send the vocabulary")
        await asyncio.shield(self._vocabulary)
        compile_id = next(self._ids)
        pending = self._pending[compile_id] = _Pending(set(range(self._num_ranks)))
        self._send(CompileGrammar(compile_id, grammar))
        try:
            async with asyncio.timeout(self._timeout_s):
                error = await pending.done
        finally:
            del self._pending[compile_id]
        return Compiled("" if error else grammar, in_one_line(error))

    async def _send_vocabulary(self) -> None:
        tokenizer = await asyncio.to_thread(self._tokenizer)
        self._send(Vocabulary(tokenizer, sorted(self._eos_token_ids)))

    def _keep(self, form: Form, compiled: Compiled) -> None:
        self._known[form] = compiled
        self._num_bytes += _size(form, compiled)
        while len(self._known) > self._max_forms or self._num_bytes > self._max_bytes:
            self._num_bytes -= _size(*self._known.popitem(last=False))


def _size(form: Form, compiled: Compiled) -> int:
    return len(form.text) + len(compiled.grammar) + len(compiled.error)
