"""Compiling forms on ranks: once per form, bounded, and what is wrong comes back in words."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from core.protocol.errors import BadRequestError
from core.protocol.openai.structured import Form
from core.protocol.steps import CompileGrammar, GrammarCompiled, Vocabulary
from workers.grammar.compiler import GrammarCompiler

if TYPE_CHECKING:
    from core.protocol.steps import ToRank


class Ranks:
    """Ranks that keep what they are sent."""

    def __init__(self) -> None:
        self.sent: list[ToRank] = []
        self.arrived = asyncio.Event()

    def send(self, message: ToRank) -> None:
        self.sent.append(message)
        self.arrived.set()

    async def asked(self, number: int) -> CompileGrammar:
        """The grammar that is asked for as the ``number``-th."""
        while len(found := [one for one in self.sent if isinstance(one, CompileGrammar)]) < number:
            self.arrived.clear()
            await self.arrived.wait()
        return found[number - 1]


def form(text: str) -> Form:
    return Form("regex", text, "structured_outputs.regex")


async def compiled(compiler: GrammarCompiler, ranks: Ranks, number: int, asked: Form, error: str = "") -> str:
    task = asyncio.create_task(compiler.compile(asked))
    message = await ranks.asked(number)
    compiler.on_compiled(0, GrammarCompiled(message.compile_id, error))
    return await task


async def test_once_per_form_and_all_ranks() -> None:
    ranks = Ranks()
    compiler = GrammarCompiler(ranks.send, 2, lambda: "tokenizer", frozenset({7, 3}))
    tasks = [asyncio.create_task(compiler.compile(form("a"))) for _ in range(3)]
    message = await ranks.asked(1)
    tasks[0].cancel()
    compiler.on_compiled(1, GrammarCompiled(message.compile_id, ""))
    await asyncio.sleep(0)
    assert not tasks[1].done()
    compiler.on_compiled(0, GrammarCompiled(message.compile_id, ""))
    compiler.on_compiled(0, GrammarCompiled(message.compile_id, "too late"))
    assert await tasks[1] == await tasks[2] == await compiler.compile(form("a")) == message.grammar
    assert ranks.sent == [Vocabulary("tokenizer", [3, 7]), message]
    await compiler.close()


async def test_what_is_wrong_is_said_and_kept() -> None:
    ranks = Ranks()
    compiler = GrammarCompiler(ranks.send, 1, lambda: "", frozenset({1}))
    with pytest.raises(BadRequestError, match=r"'structured_outputs\.regex' cannot be followed: two lines") as caught:
        await compiled(compiler, ranks, 1, form("("), "two\nlines")
    assert caught.value.param == "structured_outputs.regex"
    with pytest.raises(BadRequestError):
        await compiler.compile(form("("))
    assert len(ranks.sent) == 2
    await compiler.close()


async def test_the_oldest_are_forgotten() -> None:
    ranks = Ranks()
    compiler = GrammarCompiler(ranks.send, 1, lambda: "", frozenset({1}), max_forms=2)
    for number, text in enumerate("abac", 1):
        if text == "a" and number == 3:
            await compiler.compile(form("a"))  # known, and younger than b now
        else:
            await compiled(compiler, ranks, min(number, 3), form(text))
    await compiler.compile(form("a"))
    await compiled(compiler, ranks, 4, form("b"))
    small = GrammarCompiler(ranks.send, 1, lambda: "", frozenset({1}), max_bytes=10)
    ranks.sent.clear()
    for number in (1, 2):
        await compiled(small, ranks, number, form("a"))
    await asyncio.gather(compiler.close(), small.close())


async def test_ranks_that_do_not_answer() -> None:
    compiler = GrammarCompiler(Ranks().send, 1, lambda: "", frozenset({1}), timeout_s=0.01)
    with pytest.raises(BadRequestError, match="not compiled within"):
        await compiler.compile(form("a"))
    await compiler.close()


async def test_a_model_that_cannot_end() -> None:
    ranks = Ranks()
    compiler = GrammarCompiler(ranks.send, 1, lambda: "", frozenset())
    with pytest.raises(BadRequestError, match="no token that ends"):
        await compiler.compile(form("a"))
    assert not ranks.sent
    await compiler.close()
