"""From the forms of requests to grammars that the ranks have, and tells clients what is wrong with theirs.

Each form is tried once, in a process that may die of it; only what has passed is sent to ranks.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from baton_serve.core.protocol.errors import BadRequestError
from baton_serve.core.protocol.openai.structured import Form
from baton_serve.core.protocol.steps import ToRank, Vocabulary
from baton_serve.workers.grammar.rank_grammars import HeldGrammar, RankGrammarError, RankGrammars
from baton_serve.workers.grammar.sentences import in_words
from baton_serve.workers.grammar.trial.fairness import Places
from baton_serve.workers.grammar.trial.messages import Tried
from baton_serve.workers.grammar.trial.process import Turns

#: Forms, and bytes of their text and grammars, of which the outcome is kept.
MAX_FORMS = 256
MAX_BYTES = 8 << 20
#: Forms that wait or are tried, see ``Places``. One client alone has half of them: with a tenth of a second for each,
#: its last waits some three seconds, and the last of all some six.
MAX_TRIALS = 64


@dataclass(eq=False, slots=True)
class _Trial:
    """A form that is being tried, in a place of its client's. ``num_waiting``: the requests that want to know."""

    task: asyncio.Task[Tried]
    num_waiting: int = 0


class GrammarCompiler:
    """For one event loop. ``send`` sends a message to all ranks."""

    def __init__(
        self,
        send: Callable[[ToRank], None],
        ranks: RankGrammars,
        trial: Turns,
        tokenizer: Callable[[], str],
        eos_token_ids: frozenset[int],
        *,
        max_forms: int = MAX_FORMS,
        max_bytes: int = MAX_BYTES,
        max_trials: int = MAX_TRIALS,
    ) -> None:
        """``tokenizer`` returns the text of ``tokenizer.json``; called once, in a thread, before the first grammar."""
        self._send = send
        self._ranks = ranks
        self._trial = trial
        self._tokenizer = tokenizer
        self._eos_token_ids = eos_token_ids
        self._max_forms = max_forms
        self._max_bytes = max_bytes
        self._known: OrderedDict[Form, Tried] = OrderedDict()
        self._num_bytes = 0
        self._places = Places(max_trials)
        #: By client as well: a form has its turn and its place with those of its client.
        self._running: dict[tuple[str, Form], _Trial] = {}
        #: All trials until they have ended, those that nobody waits for among them.
        self._tasks: set[asyncio.Task[Tried]] = set()
        self._vocabulary: asyncio.Task[Vocabulary] | None = None

    def __repr__(self) -> str:
        return f"<GrammarCompiler {len(self._known)} forms, {self._num_bytes} bytes, {len(self._running)} running>"

    async def hold(self, form: Form, client: str = "") -> HeldGrammar:
        """The form's grammar, once all ranks have compiled it. Raises BadRequestError that says what is wrong, and
        RateLimitError where too many forms, or too many of this client, wait to be tried.

        Requests of one client with equal forms share a trial, and all requests with equal forms share a compilation;
        cancelling one of them does not disturb the others. A trial ends when the last of its requests has left.
        """
        tried = self._known.get(form)
        if tried is None:
            tried = await self._outcome(form, client)
        else:
            self._known.move_to_end(form)
        if tried.error:
            raise _refused(form, tried.error)
        try:
            return await self._ranks.hold(tried.grammar)
        except RankGrammarError as error:
            raise _refused(form, in_words(str(error))) from error
        except TimeoutError as error:
            raise _refused(form, "the ranks have not compiled it in time") from error

    async def close(self) -> None:
        tasks = [*self._tasks, *([] if self._vocabulary is None else [self._vocabulary])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._trial.close()

    async def _outcome(self, form: Form, client: str) -> Tried:
        trial = self._running.get((client, form))
        if trial is None:
            trial = self._running[client, form] = self._begin(form, client)
        trial.num_waiting += 1
        try:
            return await asyncio.shield(trial.task)
        finally:
            trial.num_waiting -= 1
            if not trial.num_waiting:
                del self._running[client, form]
                self._places.give_back(client)
                trial.task.cancel()

    def _begin(self, form: Form, client: str) -> _Trial:
        self._places.take(client)
        task = asyncio.create_task(self._try(form, client), name="try a form")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return _Trial(task)

    async def _try(self, form: Form, client: str) -> Tried:
        try:
            if not self._eos_token_ids:
                return Tried("", "this model has no token that ends an answer")
            tried = await self._trial.try_form(await self._sent_vocabulary(), form, client)
        except OSError as error:
            return Tried("", f"the process that tries it cannot be started: {error.strerror}", is_final=False)
        if tried.is_final:
            self._keep(form, tried)
        return tried

    async def _sent_vocabulary(self) -> Vocabulary:
        """The vocabulary, which the ranks have been sent. One that cannot be made is tried again for the next form."""
        task = self._vocabulary
        if task is None:
            task = self._vocabulary = asyncio.create_task(self._send_vocabulary(), name="send the vocabulary")
        try:
            return await asyncio.shield(task)
        except Exception:
            if self._vocabulary is task:
                self._vocabulary = None
            raise

    async def _send_vocabulary(self) -> Vocabulary:
        vocabulary = Vocabulary(await asyncio.to_thread(self._tokenizer), sorted(self._eos_token_ids))
        self._send(vocabulary)
        return vocabulary

    def _keep(self, form: Form, tried: Tried) -> None:
        if (known := self._known.get(form)) is not None:  # of another client
            self._num_bytes -= _size(form, known)
        self._known[form] = tried
        self._num_bytes += _size(form, tried)
        while len(self._known) > self._max_forms or self._num_bytes > self._max_bytes:
            self._num_bytes -= _size(*self._known.popitem(last=False))


def _refused(form: Form, why: str) -> BadRequestError:
    return BadRequestError(f"'{form.param}' cannot be followed: {why}.", param=form.param, code="invalid_value")


def _size(form: Form, tried: Tried) -> int:
    return len(form.text) + len(tried.grammar) + len(tried.error)
