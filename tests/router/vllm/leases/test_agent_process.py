"""The process with the NIXL agent: what it is started with, how it ends, and what it can do without its libraries."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from pathlib import Path

import pytest

from baton_serve.core.leases.store import LeaseState
from baton_serve.router.vllm.leases.agent.messages import (
    AgentReady,
    Connect,
    Connected,
    Forget,
    FromAgent,
    Notified,
    Notify,
)
from baton_serve.router.vllm.leases.agent_process import AgentProcess
from baton_serve.router.vllm.leases.remote_engine import RemoteEngine
from baton_serve.router.vllm.leases.side_channel import SideChannels
from baton_serve.router.vllm.leases.side_channel_facts import SideChannelError, SideChannelReason
from baton_serve.router.vllm.leases.vllm_leases import VllmLeases
from tests.kits.orphan import ends_with_parent
from tests.kits.patience import PATIENCE_S
from tests.kits.vllm.prefill_worker import prefill_worker

#: Starts an agent's process, says its id, and waits to be killed.
PARENT = """
import asyncio
from baton_serve.router.vllm.leases.agent_process import AgentProcess

async def main():
    started = asyncio.Event()
    process = AgentProcess(lambda event: started.set(), lambda: None)
    process.start("127.0.0.1")
    await started.wait()
    print(process.pid, flush=True)
    await asyncio.sleep(3600)

asyncio.run(main())
"""

#: A NIXL that fails as none of its own exceptions say, whenever it makes progress.
FAULTY_NIXL = """
class nixlBind:
    pass

def nixl_agent_config(**_options):
    return None

class nixl_agent:
    def __init__(self, name, config):
        pass

    def get_new_notifs(self):
        raise KeyError("a bug")
"""


class Watched:
    """An agent's process, and what it says."""

    def __init__(self) -> None:
        self.events: asyncio.Queue[FromAgent | None] = asyncio.Queue()
        self.process = AgentProcess(self.events.put_nowait, lambda: self.events.put_nowait(None))

    async def next(self) -> FromAgent | None:
        async with asyncio.timeout(PATIENCE_S):
            return await self.events.get()

    def environ(self) -> dict[str, str]:
        pairs = Path(f"/proc/{self.process.pid}/environ").read_text().split("\0")
        return dict(pair.split("=", 1) for pair in pairs if pair)


def lacking(module: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have processes that are started now fail to import ``module``."""
    (folder / f"{module}.py").write_text(f"raise ImportError('no {module} here')\n")
    monkeypatch.setenv("PYTHONPATH", str(folder))


async def test_ucx_listens_on_loopback_only_as_long_as_all_workers_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATON_INTERNAL_TOKEN", "not for libraries")
    monkeypatch.delenv("UCX_NET_DEVICES", raising=False)
    watched = Watched()
    watched.process.start("127.0.0.1")
    assert await watched.next() == AgentReady("")
    assert watched.environ()["UCX_NET_DEVICES"] == "lo"
    ours = {name for name in watched.environ() if name.startswith("BATON_")}
    assert ours <= {"BATON_COMPILED"}, "that of the tests"
    watched.process.start("localhost")
    watched.process.start("192.0.2.7")
    assert await watched.next() is None
    assert await watched.next() == AgentReady("")
    assert "UCX_NET_DEVICES" not in watched.environ()
    await watched.process.close()
    assert watched.process.pid is None


async def test_a_host_that_is_elsewhere_is_not_missed_while_the_process_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UCX_NET_DEVICES", raising=False)  # a person's choice would stay
    watched = Watched()
    watched.process.start("127.0.0.1")
    await asyncio.sleep(0)  # the start has begun, and nothing runs yet
    assert watched.process.pid is None
    watched.process.start("192.0.2.7")
    while await watched.next() is not None:  # the one that listens on loopback only
        pass
    assert await watched.next() == AgentReady("")
    assert watched.environ().get("UCX_NET_DEVICES") != "lo"
    await watched.process.close()


async def test_an_engine_of_which_a_rank_cannot_be_connected_is_sent_nothing() -> None:
    watched = Watched()
    async with prefill_worker() as worker:
        engine_id = worker.where.engine_id
        watched.process.start("127.0.0.1")
        assert await watched.next() == AgentReady("")
        ranks = await SideChannels().ask_all(worker.where)
        watched.process.send(Connect(engine_id, [*ranks, b"no metadata of NIXL"]))
        answer = await watched.next()
        assert isinstance(answer, Connected) and answer.error
        watched.process.send(Notify(engine_id, [b"a:1"]))
        assert await watched.next() == Notified("it is not connected")
        watched.process.send(Connect(engine_id, ranks))
        assert await watched.next() == Connected(engine_id, 1, "")
        watched.process.send(Notify(engine_id, [b"a:1"]))
        assert await watched.next() == Notified("")
    await watched.process.close()


async def test_the_process_of_the_agent_dies_with_its_parent() -> None:
    await ends_with_parent(PARENT)


async def test_the_process_of_the_agent_is_started_again_after_it_was_killed() -> None:
    watched = Watched()
    watched.process.start("127.0.0.1")
    for _ in range(2):
        assert await watched.next() == AgentReady("")
        assert watched.process.pid is not None
        os.kill(watched.process.pid, signal.SIGKILL)
        assert await watched.next() is None
    assert await watched.next() == AgentReady("")
    await watched.process.close()


async def test_an_agent_that_fails_in_no_way_of_nixls_ends_its_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nixl").mkdir()
    (tmp_path / "nixl" / "__init__.py").touch()
    (tmp_path / "nixl" / "_api.py").write_text(FAULTY_NIXL)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    watched = Watched()
    watched.process.start("127.0.0.1")
    assert await watched.next() == AgentReady("")
    watched.process.send(Forget("any engine"))
    assert await watched.next() is None
    assert await watched.next() == AgentReady("")
    await watched.process.close()


async def test_a_bug_over_what_an_agent_says_starts_another_process(caplog: pytest.LogCaptureFixture) -> None:
    watched = Watched()
    bugs = ["a bug"]

    def take(event: FromAgent) -> None:
        if bugs:
            raise KeyError(bugs.pop())
        watched.events.put_nowait(event)

    watched.process = AgentProcess(take, lambda: watched.events.put_nowait(None))
    watched.process.start("127.0.0.1")
    assert await watched.next() is None
    assert await watched.next() == AgentReady("")
    assert any(record.exc_info for record in caplog.records)
    await watched.process.close()


async def test_without_nixl_leases_end_by_themselves_and_side_channels_are_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, free_port: int
) -> None:
    lacking("nixl", tmp_path, monkeypatch)
    leases = VllmLeases(3)
    over: asyncio.Queue[LeaseState] = asyncio.Queue()
    where = RemoteEngine(engine_id="e1", host="127.0.0.1", port=free_port)
    with pytest.raises(SideChannelError) as caught:
        await leases.query(where.host, where.port)
    assert caught.value.reason is SideChannelReason.NO_ANSWER
    lease = leases.hold(where, "a", over.put_nowait)
    leases.hold(where, "b", over.put_nowait).release()
    assert (lease.remaining_ms() or 0) > 0
    assert await asyncio.wait_for(over.get(), PATIENCE_S) is LeaseState.EXPIRED
    assert lease.remaining_ms() == 0
    await leases.close()
    lines = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(lines) == 1
    assert "pip install 'baton-serve[vllm]'" in lines[0].getMessage()
    assert "no nixl here" in lines[0].getMessage()


async def test_a_malformed_address_is_not_asked() -> None:
    leases = VllmLeases(3)
    for host, port in (("a b", 1), ("127.0.0.1", 0)):
        with pytest.raises(ValueError, match="remote_"):
            await leases.query(host, port)
    assert leases._process.pid is None
    await leases.close()
