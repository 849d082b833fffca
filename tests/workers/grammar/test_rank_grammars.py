"""Which grammars the ranks have: those that requests follow, however long these wait, and the newest of the others."""

from __future__ import annotations

import asyncio

import pytest

from baton_serve.core.protocol.steps import CompileGrammar, ForgetGrammar, GrammarCompiled, ToRank
from baton_serve.workers.grammar.rank_grammars import HeldGrammar, RankGrammarError, RankGrammars


class Ranks:
    """Ranks that keep what they are told to, and answer at once unless ``is_silent``."""

    def __init__(self, num_ranks: int = 1, max_grammars: int = 2, timeout_s: float = 60) -> None:
        self.kept: dict[int, str] = {}
        self.num_asked = 0
        self.is_silent = False
        self.error = ""
        self.num_ranks = num_ranks
        self.grammars = RankGrammars(self.send, num_ranks, max_grammars=max_grammars, timeout_s=timeout_s)

    def send(self, message: ToRank) -> None:
        if isinstance(message, ForgetGrammar):
            self.kept.pop(message.compile_id, None)
            return
        assert isinstance(message, CompileGrammar)
        self.num_asked += 1
        if not self.error:
            self.kept[message.compile_id] = message.grammar
        if not self.is_silent:
            asyncio.get_running_loop().call_soon(self.answer, message.compile_id)

    def answer(self, compile_id: int) -> None:
        for rank in range(self.num_ranks):
            self.grammars.on_compiled(rank, GrammarCompiled(compile_id, self.error))

    @property
    def texts(self) -> set[str]:
        return set(self.kept.values())


async def test_what_is_held_stays_and_the_newest_of_the_others() -> None:
    ranks = Ranks()
    held = [await ranks.grammars.hold("waits")]
    for text in "abcd":
        (await ranks.grammars.hold(text)).release()
    assert ranks.texts == {"waits", "d"}
    held += [await ranks.grammars.hold(text) for text in "ef"]
    assert ranks.texts == {"waits", "e", "f"}, "more than the bound, as requests follow them"
    for one in held:
        one.release()
        one.release()
    assert ranks.texts == {"e", "f"}
    assert (await ranks.grammars.hold("waits")).text == "waits"
    assert ranks.num_asked == 8, "what is gone is compiled again"
    (await ranks.grammars.hold("f")).release()
    assert ranks.num_asked == 8


async def test_each_use_makes_it_young_again() -> None:
    ranks = Ranks()
    for text in "abac":
        (await ranks.grammars.hold(text)).release()
    assert ranks.texts == {"a", "c"}


async def test_two_requests_hold_one() -> None:
    ranks = Ranks(max_grammars=0)
    first, second = await asyncio.gather(ranks.grammars.hold("a"), ranks.grammars.hold("a"))
    assert ranks.num_asked == 1
    first.release()
    assert ranks.texts == {"a"}
    second.release()
    assert ranks.texts == set()


async def test_all_ranks_have_to_answer_and_a_cancellation_disturbs_no_other() -> None:
    ranks = Ranks(num_ranks=2)
    ranks.is_silent = True
    tasks = [asyncio.create_task(ranks.grammars.hold("a")) for _ in range(2)]
    await asyncio.sleep(0)
    tasks[0].cancel()
    ranks.grammars.on_compiled(1, GrammarCompiled(1, ""))
    await asyncio.sleep(0)
    assert not tasks[1].done()
    ranks.grammars.on_compiled(0, GrammarCompiled(1, ""))
    assert isinstance(await tasks[1], HeldGrammar)
    ranks.grammars.on_compiled(0, GrammarCompiled(1, "too late"))
    assert repr(ranks.grammars) == "<RankGrammars 1 grammars, 1 held>"


async def test_an_error_is_not_kept() -> None:
    ranks = Ranks()
    ranks.error = "no"
    for _ in range(2):
        with pytest.raises(RankGrammarError, match="no"):
            await ranks.grammars.hold("a")
    assert ranks.num_asked == 2
    ranks.error = ""
    await ranks.grammars.hold("a")


async def test_ranks_that_answer_too_late() -> None:
    """The request fails, and the next one has what has been compiled meanwhile."""
    ranks = Ranks(max_grammars=0, timeout_s=0)
    ranks.is_silent = True
    with pytest.raises(TimeoutError):
        await ranks.grammars.hold("a")
    assert ranks.texts == {"a"}, "a rank that has not compiled it would forget nothing"
    ranks.answer(1)
    assert (await ranks.grammars.hold("a")).text == "a"
    assert ranks.num_asked == 1
