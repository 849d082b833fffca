"""Trying forms in a process of their own, with the library as it is: what kills it there harms nothing else."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from baton_serve.core.protocol.openai.structured import Form, Kind
from baton_serve.core.protocol.steps import Vocabulary
from baton_serve.workers.grammar.notation import grammar_of
from baton_serve.workers.grammar.sentences import TOO_COMPLEX
from baton_serve.workers.grammar.trial.attempt import TOO_LONG, TOO_MUCH
from baton_serve.workers.grammar.trial.main import UNREADABLE
from baton_serve.workers.grammar.trial.messages import Limits, Tried
from baton_serve.workers.grammar.trial.process import ANSWER_S, LIMITS, TrialProcess, Turns
from tests.kits.orphan import ends_with_parent
from tests.kits.repetition import some_now
from tests.kits.whole import reference
from tests.kits.worker.grammar import DEADLY, ENDLESS, WatchedTrial

PATIENCE_S = 60.0
SIZE = len(reference.tokenizer())
#: Little time, and more memory than can be filled in it.
IMPATIENT = Limits(cpu_s=0.2, memory_bytes=4 << 30)
#: Little memory, and more time than it takes to fill it.
NARROW = Limits(cpu_s=PATIENCE_S, memory_bytes=32 << 20)
PARENT = """
import asyncio
from baton_serve.core.protocol.openai.structured import Form
from baton_serve.core.protocol.steps import Vocabulary
from baton_serve.workers.grammar.trial.process import TrialProcess

async def main():
    trial = TrialProcess(5)
    await trial.try_form(Vocabulary("", [0]), Form("regex", "a", "p"))
    print(trial.pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def vocabulary() -> Vocabulary:
    return Vocabulary(reference.tokenizer().backend_tokenizer.to_str(), [0])


def form(kind: Kind, text: str) -> Form:
    return Form(kind, text, "p")


class Trial:
    """A process that tries, with the reference model's vocabulary."""

    def __init__(self, limits: Limits = LIMITS, *, answer_s: float = ANSWER_S) -> None:
        self.process = TrialProcess(SIZE, limits, answer_s=answer_s)

    async def __call__(self, kind: Kind, text: str) -> Tried:
        return await self.process.try_form(vocabulary(), form(kind, text))


@pytest.fixture
async def trial() -> AsyncIterator[Trial]:
    trial = Trial()
    yield trial
    await trial.process.close()


async def test_what_passes(trial: Trial) -> None:
    for kind, text in (("regex", "a+"), ("json_schema", '{"type":"object"}'), ("choice", '["a","b"]')):
        assert await trial(kind, text) == Tried(grammar_of(kind, text))  # type: ignore[arg-type]


async def test_large_forms_of_the_usual_kind_pass(trial: Trial) -> None:
    """Near the bound of bytes, and far from those of time and memory."""
    texts = ",".join(
        f'"field{number}":{{"type":"object","properties":{{"at":{{"type":"string","format":"date-time"}},'
        f'"many":{{"type":"array","items":{{"type":"number","minimum":1,"maximum":9999}}}}}},"required":["at"]}}'
        for number in range(350)
    )
    schema = f'{{"type":"object","properties":{{{texts}}}}}'
    assert 55_000 < len(schema) < 1 << 16
    assert (await trial("json_schema", schema)).error == ""
    assert (await trial("choice", str([f"choice number {one}" for one in range(1024)]).replace("'", '"'))).error == ""
    assert (await trial("regex", "x" * (1 << 16))).error == ""


@pytest.mark.parametrize("limits", [IMPATIENT, NARROW])
@pytest.mark.parametrize(("kind", "text"), some_now(DEADLY, 2))
async def test_what_is_deadly(kind: Kind, text: str, limits: Limits) -> None:
    """It is refused, the same process tries those that waited behind it, and its log is left alone."""
    trial = Trial(limits)
    refused, other = await asyncio.gather(trial(kind, text), trial("regex", "a"))
    assert refused == Tried("", TOO_LONG if limits is IMPATIENT else TOO_MUCH)
    assert other == Tried(grammar_of("regex", "a"))
    await trial.process.close()


@pytest.mark.parametrize(("kind", "text"), ENDLESS)
async def test_what_nothing_can_follow(trial: Trial, kind: Kind, text: str) -> None:
    assert await trial(kind, text) == Tried("", "no answer can ever complete it")


async def test_what_is_too_complex(trial: Trial) -> None:
    many = "start: T\nT: /a{1,100000}b{1,100000}/ & /(a|b)*c(a|b){1000}/"
    assert await trial("grammar", many) == Tried("", TOO_COMPLEX)


async def test_it_starts_with_the_first_form_and_again_after_its_death(trial: Trial) -> None:
    assert repr(trial.process) == "<TrialProcess pid=None>"
    await trial("regex", "a")
    first = trial.process.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    died = await trial("regex", "b")
    assert not died.is_final, "the form is not to blame"
    assert (await trial("regex", "b")).error == ""
    assert trial.process.pid not in (None, first)


async def test_it_has_not_loaded_torch_and_no_secrets(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATON_INTERNAL_TOKEN", "not for forms")
    await trial("regex", "a")
    folder = Path(f"/proc/{trial.process.pid}")
    assert "torch" not in (folder / "maps").read_text()
    assert "not for forms" not in (folder / "environ").read_text()


async def test_one_that_does_not_answer_is_killed() -> None:
    trial = Trial(answer_s=0.05)
    text = DEADLY[0][1]
    tried = await trial("json_schema", text)
    assert "not tried" in tried.error and not tried.is_final
    assert trial.process.pid is None


async def test_a_cancellation_ends_it() -> None:
    trial = WatchedTrial(SIZE, Limits(cpu_s=PATIENCE_S, memory_bytes=8 << 30))
    task = asyncio.create_task(trial.try_form(vocabulary(), form(*DEADLY[0])))
    await trial.started.wait()
    assert trial.pid is not None
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert task.cancelled() and trial.pid is None


async def test_a_request_that_leaves_its_moment_ends_no_process() -> None:
    """Others wait for the same process; a form that has not had its turn is not tried."""
    turns = Turns(SIZE)
    await turns.try_form(vocabulary(), form("regex", "a"))
    pid = turns.quick.pid
    tasks = [asyncio.create_task(turns.try_form(vocabulary(), form(*DEADLY[0]))) for _ in range(50)]
    other = asyncio.create_task(turns.try_form(vocabulary(), form("regex", "b")))
    await asyncio.sleep(0)  # the first has its turn
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    assert (await other).error == "" and turns.quick.pid == pid and turns.slow.pid is None
    await turns.close()


async def test_a_form_that_was_left_ends_with_the_worker() -> None:
    turns = Turns(SIZE)
    task = asyncio.create_task(turns.try_form(vocabulary(), form("regex", "a")))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    await turns.close()
    assert turns.quick.pid is None
    assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []


async def test_a_vocabulary_that_cannot_be_read() -> None:
    trial = TrialProcess(SIZE)
    for _ in range(2):
        assert await trial.try_form(Vocabulary("{}", [0]), form("regex", "a")) == Tried("", UNREADABLE)
    await trial.close()


async def test_it_dies_with_its_parent() -> None:
    await ends_with_parent(PARENT)
