"""From forms to grammars of the ranks: each form is tried once, with the real library, and what is wrong is said."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable

import pytest

from baton_serve.core.protocol.errors import BadRequestError, RateLimitError
from baton_serve.core.protocol.openai.structured import Form, Kind
from baton_serve.core.protocol.steps import CompileGrammar, ForgetGrammar, GrammarCompiled, ToRank, Vocabulary
from baton_serve.workers.grammar.compiler import GrammarCompiler
from baton_serve.workers.grammar.notation import grammar_of
from baton_serve.workers.grammar.rank_grammars import RankGrammars
from baton_serve.workers.grammar.trial.messages import Limits
from baton_serve.workers.grammar.trial.process import Turns
from tests.kits.repetition import some_now
from tests.kits.whole import reference
from tests.kits.worker.grammar import DEADLY, ENDLESS, WatchedTrial

EOS = frozenset({0})


def tokenizer() -> str:
    return str(reference.tokenizer().backend_tokenizer.to_str())


class Built:
    """A compiler with one rank, which compiles everything at once."""

    def __init__(
        self,
        *,
        text: Callable[[], str] = tokenizer,
        eos: frozenset[int] = EOS,
        cpu_s: float = 60.0,
        max_slow: int = 8,
        **bounds: int,
    ) -> None:
        self.sent: list[ToRank] = []
        self.error = ""
        limits = Limits(cpu_s=cpu_s, memory_bytes=64 << 20)
        self.trial = Turns(len(reference.tokenizer()), limits, max_slow=max_slow)
        self.trial.slow = self.slow = WatchedTrial(len(reference.tokenizer()), limits)
        self.ranks = RankGrammars(self.send, 1, max_grammars=1)
        self.compiler = GrammarCompiler(self.send, self.ranks, self.trial, text, eos, **bounds)

    def send(self, message: ToRank) -> None:
        self.sent.append(message)
        if isinstance(message, CompileGrammar):
            answer = GrammarCompiled(message.compile_id, self.error)
            asyncio.get_running_loop().call_soon(self.ranks.on_compiled, 0, answer)

    @property
    def compiled(self) -> list[str]:
        return [message.grammar for message in self.sent if isinstance(message, CompileGrammar)]

    async def refused(self, form: Form) -> str:
        """What the client is told."""
        with pytest.raises(BadRequestError) as caught:
            await self.compiler.hold(form)
        assert caught.value.param == form.param
        prefix = f"'{form.param}' cannot be followed: "
        assert caught.value.message.startswith(prefix)
        return caught.value.message.removeprefix(prefix)


@pytest.fixture
async def built() -> AsyncIterator[Built]:
    built = Built()
    yield built
    await built.compiler.close()
    assert built.trial.quick.pid is None and built.trial.slow.pid is None


def regex(text: str) -> Form:
    return Form("regex", text, "structured_outputs.regex")


async def test_once_per_form(built: Built) -> None:
    tasks = [asyncio.create_task(built.compiler.hold(regex("a"))) for _ in range(3)]
    await asyncio.sleep(0)
    tasks[0].cancel()
    held = [await task for task in tasks[1:]]
    held.append(await built.compiler.hold(regex("a")))
    assert {one.text for one in held} == {grammar_of("regex", "a")}
    assert built.sent == [Vocabulary(tokenizer(), [0]), CompileGrammar(1, grammar_of("regex", "a"))]


def slow(number: int) -> Form:
    """A form that takes minutes."""
    text = DEADLY[0][1].replace("9973", str(9973 + 2 * number))
    return Form("json_schema", text, "response_format")


async def test_a_trial_that_nobody_waits_for_ends(built: Built) -> None:
    tasks = [asyncio.create_task(built.compiler.hold(slow(number))) for number in (1, 1, 2)]
    await built.slow.started.wait()
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    assert built.compiler._running == {}
    await built.slow.ended.wait()
    assert built.slow.pid is None
    await built.compiler.hold(regex("a"))


async def test_slow_forms_of_others_are_not_waited_for(built: Built) -> None:
    """Nor does a form wait that was left and is asked for again."""
    tasks = [asyncio.create_task(built.compiler.hold(slow(number))) for number in range(2)]
    await built.compiler.hold(regex("a"))
    assert not any(task.done() for task in tasks)
    left = asyncio.create_task(built.compiler.hold(regex("b")))
    await asyncio.sleep(0)
    left.cancel()
    await built.compiler.hold(regex("b"))
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


async def test_too_many_forms_are_told_to_come_again() -> None:
    built = Built(max_trials=4)
    tasks = [asyncio.create_task(built.compiler.hold(slow(number))) for number in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(RateLimitError, match="forms of structured output are waiting") as caught:
        await built.compiler.hold(regex("a"))
    assert caught.value.retry_after_s
    tasks[0].cancel()
    await asyncio.wait(tasks[:1])
    await built.compiler.hold(regex("a"))
    await built.compiler.close()
    await asyncio.wait(tasks)


async def test_the_forms_of_one_client_keep_no_other_waiting() -> None:
    built = Built(max_trials=16)
    tasks = [asyncio.create_task(built.compiler.hold(slow(number), "one")) for number in range(20)]
    await built.compiler.hold(regex("a"), "another")
    refused = [task for task in tasks if task.done()]
    assert len(refused) == 12
    assert all(isinstance(task.exception(), RateLimitError) for task in refused)
    await built.compiler.close()
    await asyncio.wait(tasks)


async def test_who_asks_for_anothers_form_has_a_turn_of_its_own() -> None:
    built = Built(max_trials=8)
    tasks = [asyncio.create_task(built.compiler.hold(slow(number), "one")) for number in range(3)]
    tasks.append(asyncio.create_task(built.compiler.hold(regex("a"), "one")))
    await asyncio.sleep(0)
    await built.compiler.hold(regex("a"), "another")
    size = built.compiler._num_bytes
    await tasks.pop()
    assert built.compiler._num_bytes == size, "what is kept of a form counts once"
    await built.compiler.close()
    await asyncio.wait(tasks)


async def test_too_many_slow_forms_are_told_to_come_again() -> None:
    built = Built(max_slow=2)
    tasks = [asyncio.create_task(built.compiler.hold(slow(number))) for number in range(3)]
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    assert isinstance(done.pop().exception(), RateLimitError)
    await built.compiler.hold(regex("a"))
    await built.compiler.close()
    await asyncio.wait(tasks)


async def test_a_form_that_the_ranks_no_longer_have_is_compiled_again(built: Built) -> None:
    for text in "aba":
        (await built.compiler.hold(regex(text))).release()
    assert built.compiled == [grammar_of("regex", text) for text in "aba"]
    assert [message for message in built.sent if isinstance(message, ForgetGrammar)] == [
        ForgetGrammar(1),
        ForgetGrammar(2),
    ]


@pytest.mark.parametrize(("kind", "text"), some_now([*DEADLY, *ENDLESS], 2))
async def test_what_no_rank_may_see(kind: Kind, text: str) -> None:
    """It is refused with a sentence, at once when it is asked again, and what waited behind it is compiled."""
    built = Built(cpu_s=0.2)
    form = Form(kind, text, "response_format")
    why, other = await asyncio.gather(built.refused(form), built.compiler.hold(regex("a")))
    assert built.trial.quick.pid is not None
    os.kill(built.trial.quick.pid, signal.SIGSTOP)  # so nothing is tried any more
    assert await built.refused(form) == why and why.count(".") == 1
    assert built.compiled == [other.text]
    await built.compiler.close()


async def test_what_is_wrong_is_said_and_kept(built: Built) -> None:
    for _ in range(2):
        assert "unclosed group" in await built.refused(regex("("))
    assert not built.compiled
    assert repr(built.compiler).startswith("<GrammarCompiler 1 forms")


async def test_what_ranks_say_is_told(built: Built) -> None:
    built.error = "NoExtensionBias\n<non-verbose/>"
    assert await built.refused(regex("a")) == "no answer can ever complete it."


async def test_the_oldest_are_forgotten() -> None:
    for bounds in ({"max_forms": 2}, {"max_bytes": 2 * len("a" + grammar_of("regex", "a"))}):
        built = Built(**bounds)
        for text in "abac":
            await built.compiler.hold(regex(text))
        assert repr(built.compiler).startswith("<GrammarCompiler 2 forms")
        assert list(built.compiler._known) == [regex("a"), regex("c")]
        await built.compiler.close()


async def test_a_vocabulary_that_failed_is_made_again() -> None:
    texts = iter([OSError("for once"), RuntimeError("twice")])

    def text() -> str:
        for error in texts:
            raise error
        return tokenizer()

    built = Built(text=text)
    assert "cannot be started" in await built.refused(regex("a"))
    with pytest.raises(RuntimeError):
        await built.compiler.hold(regex("a"))
    await built.compiler.hold(regex("a"))
    await built.compiler.close()


async def test_a_model_that_cannot_end() -> None:
    built = Built(eos=frozenset())
    assert "no token that ends" in await built.refused(regex("a"))
    assert not built.sent and built.trial.quick.pid is None
    await built.compiler.close()
