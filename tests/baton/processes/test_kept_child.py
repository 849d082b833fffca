"""A child that is started again, and what becomes of the others when it does not come back."""

from __future__ import annotations

import asyncio
import os
import sys
from functools import partial
from pathlib import Path

import pytest

from baton_serve.baton.processes.child import ChildDiedError, ChildSpec, PutOffError
from baton_serve.baton.processes.crew import Crew
from baton_serve.baton.processes.kept_child import Keeping, KeptChild
from baton_serve.baton.processes.restarts import Restarts
from baton_serve.baton.processes.supervisor import StopRequests, Supervisor
from baton_serve.baton.up.missing import MissingFile
from baton_serve.router.pool.missing import MissingWorkers

#: Fails while the file of its name does not exist.
PROGRAM = """
import os, signal, sys
def say(line): os.write(int(sys.argv[-1]), line.encode() + b"\\n")
if not os.path.exists(sys.argv[1]):
    say('{"event": "failed", "error": "no room"}')
    sys.exit(1)
say('{"event": "ready", "url": "http://somewhere"}')
signal.pause()
"""


class Kit:
    """Children of one crew, whose pauses are none, and what is told of them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.crew = Crew()
        self.news: asyncio.Queue[str] = asyncio.Queue()
        self.missing = MissingFile(folder / "missing.json")
        self.read = MissingWorkers(self.missing.path)
        self.children: list[KeptChild] = []

    def child(self, name: str, can_start: bool = True) -> KeptChild:
        path = self._folder / name
        if can_start:
            path.touch()
        spec = ChildSpec(name, (sys.executable, "-c", PROGRAM, str(path)), dict(os.environ))
        restarts = partial(Restarts, stretch=lambda: 0.0)
        keeping = Keeping(
            *(lambda *_: None, self.news.put_nowait, 60.0, self._folder),
            on_missing=self.missing.note,
            make_restarts=restarts,
        )
        self.children.append(KeptChild(spec, keeping, self.crew))
        return self.children[-1]

    def said_to_be_missing(self) -> list[str] | None:
        """What a router reads."""
        return self.read.names()

    def repair(self, name: str) -> None:
        (self._folder / name).touch()

    def spoil(self, name: str) -> None:
        (self._folder / name).unlink()

    async def until(self, end: str) -> str:
        while not (line := await self.news.get()).endswith(end):
            pass
        return line


@pytest.fixture
async def kit(tmp_path: Path):  # type: ignore[no-untyped-def]
    (tmp_path / "kit").mkdir()
    kit = Kit(tmp_path / "kit")
    yield kit
    for child in kit.children:
        child.keep_no_more()
    for child in kit.children:
        await child.stop(0)


async def test_one_of_several_is_put_off_and_comes_when_it_can(kit: Kit) -> None:
    well, ill = kit.child("d-1"), kit.child("d-2", can_start=False)
    supervisor = Supervisor([[well, ill]], StopRequests())
    assert list(await supervisor.start()) == ["d-1"]
    assert (well.trouble, ill.trouble) == ("", "d-2: no room")
    assert kit.said_to_be_missing() == ["d-2"]
    with pytest.raises(PutOffError, match=r"^d-2: no room$"):
        await ill.ready()
    kit.repair("d-2")
    assert await kit.until("serves now") == "d-2: serves now"
    assert (ill.trouble, kit.said_to_be_missing()) == ("", [])
    await supervisor.stop(60)


async def test_when_none_of_them_can_start_that_is_the_end(kit: Kit) -> None:
    supervisor = Supervisor([[kit.child("d-1", False), kit.child("d-2", False)]], StopRequests())
    with pytest.raises(ChildDiedError, match=r"^d-\d: no room$"):
        await supervisor.start()
    await supervisor.stop(60)


async def test_the_only_one_that_cannot_start_is_the_end(kit: Kit) -> None:
    only = kit.child("d-1", can_start=False)
    await only.start()
    with pytest.raises(ChildDiedError, match=r"^d-1: no room$") as caught:
        await only.ready()
    assert not isinstance(caught.value, PutOffError)
    assert await only.ended() == "d-1: no room"


@pytest.mark.slow
async def test_one_that_does_not_come_back_is_tried_again_while_another_serves(kit: Kit) -> None:
    well, ill = kit.child("d-1"), kit.child("d-2")
    for child in (well, ill):
        await child.start()
        await child.ready()
    kit.spoil("d-2")
    ill.kill()
    for _ in range(8):  # more than there is hope for
        await kit.until(" s")
    kit.repair("d-2")
    assert await kit.until("serves again") == "d-2: serves again"
    kit.spoil("d-2")
    kit.spoil("d-1")
    ill.kill()
    well.kill()
    assert await ill.ended() == "d-2: no room"


async def test_one_that_has_joined_later_is_missed_less(kit: Kit) -> None:
    first = kit.child("d-1")
    await first.start()
    await first.ready()
    kit.crew, crew = Crew(), kit.crew
    added = kit.child("d-2")
    await added.start()
    await added.ready()
    added.join(crew)
    kit.spoil("d-2")
    added.kill()
    for _ in range(8):
        await kit.until(" s")
    assert kit.said_to_be_missing() == ["d-2"]
    await added.leave(0)
    assert kit.said_to_be_missing() == []
    kit.spoil("d-1")
    first.kill()
    assert await first.ended() == "d-1: no room"
