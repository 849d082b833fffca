"""What the agent's process answers to the router, whatever happens in it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from baton_serve.router.vllm.leases.agent.main import Commands
from baton_serve.router.vllm.leases.agent.messages import Connect, Connected, Queried, Query
from baton_serve.router.vllm.leases.remote_engine import RemoteEngine
from baton_serve.router.vllm.leases.side_channel_facts import SideChannelReason
from tests.kits.patience import PATIENCE_S

if TYPE_CHECKING:
    from baton_serve.router.vllm.leases.agent.messages import FromAgent, ToAgent

WHERE = RemoteEngine(engine_id="e1", host="127.0.0.1", port=5600)


class Faulty:
    """Side channels with a bug."""

    async def ask_all(self, _where: RemoteEngine) -> list[bytes]:
        raise KeyError("a bug")

    async def ask_first(self, _host: str, _port: int, _handshake_port: int) -> None:
        raise KeyError("a bug")


class Endless:
    """Side channels with one more rank to ask, again and again."""

    async def ask_all(self, _where: RemoteEngine) -> list[bytes]:
        await asyncio.Event().wait()
        return []


async def answer(command: ToAgent, side_channels: Any) -> FromAgent:
    answers: asyncio.Queue[FromAgent] = asyncio.Queue()
    # Whoever reads the log learns of the bug as well, which is not looked at here.
    asyncio.get_running_loop().set_exception_handler(lambda _loop, _context: None)
    Commands(answers.put_nowait, None, side_channels).take(command)  # type: ignore[arg-type]
    return await asyncio.wait_for(answers.get(), PATIENCE_S)


async def test_a_bug_in_a_command_is_an_answer_that_names_it() -> None:
    assert await answer(Connect(WHERE), Faulty()) == Connected("e1", 0, "KeyError('a bug')")
    answered = await answer(Query(3, "127.0.0.1", 5600), Faulty())
    assert answered == Queried(3, None, SideChannelReason.CANNOT_ASK, "KeyError('a bug')")


async def test_an_engine_whose_ranks_never_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("baton_serve.router.vllm.leases.agent.main.CONNECT_S", 0.01)
    assert await answer(Connect(WHERE), Endless()) == Connected("e1", 0, "its ranks do not answer within 0.01 s")
